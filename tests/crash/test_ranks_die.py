"""kill -9 of one rank or of all: peers leave at once, the cause is named, the next run goes on.

Each case is one crash in a run of some ranks, then a run of another number of ranks to the end.
"""

import itertools
import random
from pathlib import Path

import pytest

from crash_bench import NUM_LAYERS, Bench, Run, Undisturbed, digests
from crash_orders import Order

pytestmark = pytest.mark.distributed

LEAVE_SECONDS = 10.0
KILLED = -9
TRY_AGAIN = 75

# recipe, ranks before, ranks after, where
CHOSEN: list[tuple[str, int, int, Order]] = [
    # inside a file, and around its rename
    ("static", 2, 3, Order(1, "layer:half", 40)),
    ("gptq", 2, 1, Order(0, "layer:before-rename", 2)),
    ("ascend-first", 2, 1, Order(0, "sidecar:half", 4)),
    ("static", 3, 2, Order(2, "carry:half", 2)),
    # between the files and the journal, and in it
    ("float", 2, 1, Order(0, "journal:before-rename", 5)),
    ("every-3", 2, 1, Order(0, "journal:after-rename", 6)),
    ("no-data", 2, 1, Order(0, "journal:half", 4)),
    # on the way through a layer
    ("static", 2, 1, Order(1, "begin")),
    ("static", 3, 1, Order(1, "pass1", 8)),
    ("every-3", 3, 2, Order(0, "pass2", 9)),
    ("static", 3, 1, Order(0, "transfer:all_to_all", 5)),
    ("gptq", 3, 2, Order(1, "sent:publish", 4)),
    ("gptq", 2, 1, Order(1, "solve:task", 9)),
    # when all is solved
    ("static", 2, 3, Order(1, "verify:file", 2)),
    ("static", 2, 3, Order(0, "manifest:before-rename", 1)),
    ("static", 2, 1, Order(0, "report:half", 1)),
    ("static", 2, 1, Order(0, "publish:after-rename", 1)),
    ("static", 2, 1, Order(0, "removal:half", 1)),
    # all ranks at once
    ("static", 3, 2, Order(1, "solved:task", 7, "kill-ranks")),
    ("float", 2, 1, Order(0, "journal:half", 4, "kill-ranks")),
]

# as above, for the soak
MORE: list[tuple[str, int, int, Order]] = [
    ("static", 2, 1, Order(0, "layer:written", 3)),
    ("ascend-first", 2, 3, Order(1, "layer:after-rename", 4)),
    ("every-3", 2, 3, Order(0, "carry:after-rename", 1)),
    ("static", 2, 3, Order(0, "journal:begin", 4)),
    ("gptq", 2, 3, Order(0, "journal:half", 3)),
    ("static", 2, 1, Order(0, "journal:before-rename", 1)),
    ("static", 3, 2, Order(2, "phase:partials", 3)),
    ("gptq", 2, 3, Order(1, "go:partials", 2)),
    ("ascend-first", 2, 3, Order(0, "solved:task", 12)),
    ("no-data", 2, 3, Order(1, "solve:task", 6)),
    ("static", 2, 1, Order(1, "evaluate", 3)),
    ("static", 2, 1, Order(0, "config:half", 1)),
    ("static", 2, 3, Order(0, "report:after-rename", 1)),
    ("static", 2, 1, Order(0, "publish:before-rename", 1)),
    ("static", 2, 3, Order(0, "removal:begin", 1)),
    ("float", 2, 3, Order(1, "pass1", 18)),
]


def _name(case: tuple[str, int, int, Order]) -> str:
    recipe, before, after, order = case
    return f"{recipe}-{before}to{after}-{order.action}{order.rank}-{order.event}-{order.count}"


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=_name(case)) for case in CHOSEN),
        *(pytest.param(case, id=_name(case), marks=pytest.mark.soak) for case in MORE),
    ],
)
def test_run_goes_on_after_a_rank_died(
    bench: Bench, undisturbed: Undisturbed, case: tuple[str, int, int, Order]
) -> None:
    recipe, before, after, order = case
    crashed = bench.run(recipe, before, order)
    check_crash(bench, crashed, order)
    goes_on(bench, undisturbed, recipe, after, [crashed])


@pytest.mark.parametrize("seed", range(3))
def test_run_goes_on_after_three_random_deaths(
    bench: Bench, undisturbed: Undisturbed, seed: int
) -> None:
    random_deaths(bench, undisturbed, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 130))
def test_run_goes_on_after_many_random_deaths(
    bench: Bench, undisturbed: Undisturbed, seed: int
) -> None:
    random_deaths(bench, undisturbed, seed)


def random_deaths(bench: Bench, undisturbed: Undisturbed, seed: int) -> None:
    """Up to three attempts die somewhere, each of another number of ranks."""
    rng = random.Random(seed)
    recipe = rng.choice(["static", "every-3", "float", "gptq", "ascend-first", "no-data"])
    length = len(undisturbed.events(recipe, 2)) // 2
    attempts: list[Run] = []
    for _ in range(3):
        ranks = rng.choice([2, 3])
        action = rng.choice(["kill", "kill", "kill-ranks"])
        order = Order(rng.randrange(ranks), "*", rng.randrange(1, length // 2), action)
        run = bench.run(recipe, ranks, order)
        attempts.append(run)
        if run.hit is None:
            break  # what was left was shorter than that
        check_crash(bench, run, order)
    goes_on(bench, undisturbed, recipe, rng.choice([1, 2, 3, 5]), attempts)


def check_crash(bench: Bench, run: Run, order: Order) -> None:
    """Peers left in time with the retriable code, the cause is told, nothing is half published."""
    assert run.hit is not None, "the crash did not happen"
    assert run.ended - run.hit.seconds < LEAVE_SECONDS
    assert run.outcome.exit_code == TRY_AGAIN, run.outcome
    assert run.codes.pop(order.rank) == KILLED
    done = all(event.name != "close" for event in run.events)
    allowed = {TRY_AGAIN} if done else {TRY_AGAIN, 0}  # 0: it had nothing left to do
    if order.action == "kill-ranks":
        allowed |= {KILLED}
    assert set(run.codes.values()) <= allowed, run.codes
    cause = run.outcome.cause
    if order.action == "kill":
        assert cause.startswith(f"rank {order.rank}"), cause
    assert "SIGKILL" in cause
    assert "\n" not in cause
    if run.solved:
        assert f"of {NUM_LAYERS}" in cause or "verifying" in cause or "publishing" in cause, cause
    if bench.output.exists():
        assert order.event in ("publish:after-rename", "removal:begin", "removal:half")
    elif any(bench.work.glob("attempt-*/journal.json")):
        assert "run the same command again" in run.outcome.hint


def goes_on(
    bench: Bench, undisturbed: Undisturbed, recipe: str, workers: int, attempts: list[Run]
) -> None:
    """The next run completes, with the same bytes, and solves at most one layer a crash again."""
    run = bench.run(recipe, workers)
    assert run.outcome.exit_code == 0, run.outcome
    assert digests(bench.output) == undisturbed.digests(recipe)
    assert bench.leftovers() == []
    solved = [layer for each in [*attempts, run] for layer in each.solved]
    assert set(solved) == set(range(1, NUM_LAYERS - 1))
    assert len(solved) <= NUM_LAYERS - 2 + len(attempts)
    for before, after in itertools.pairwise([*attempts, run]):
        assert len(set(before.solved) & set(after.solved)) <= 1
    assert Path(f"{bench.output}.report.json").is_file()

"""A frozen rank is missed by its heartbeats; an attempt that was followed changes nothing more."""

import os
import re
import select
import signal
from pathlib import Path

import pytest

from crash_bench import Bench, Undisturbed, digests
from crash_orders import Order
from crash_process import Command

pytestmark = pytest.mark.distributed

LEAVE_SECONDS = 10.0


@pytest.mark.parametrize(
    "order",
    [
        Order(1, "solve:task", 6, "freeze"),
        Order(0, "pass2", 7, "freeze"),
        pytest.param(Order(1, "transfer:all_to_all", 4, "freeze"), marks=pytest.mark.soak),
        pytest.param(Order(0, "journal:half", 3, "freeze"), marks=pytest.mark.soak),
    ],
    ids=lambda order: f"{order.rank}-{order.event}",
)
def test_frozen_rank_is_named_by_its_heartbeats(
    bench: Bench, undisturbed: Undisturbed, order: Order
) -> None:
    run = bench.run("static", 3, order)
    assert run.hit is not None
    assert run.ended - run.hit.seconds < LEAVE_SECONDS
    assert run.outcome.exit_code == 75, run.outcome
    assert run.outcome.cause.startswith(f"rank {order.rank}, "), run.outcome
    assert re.search("no heartbeat for 7 s|its store does not answer", run.outcome.cause)
    assert run.codes.pop(order.rank) == -signal.SIGKILL, "a frozen rank would stay for ever"
    assert set(run.codes.values()) == {75}
    assert bench.run("static", 2).outcome.exit_code == 0
    assert digests(bench.output) == undisturbed.digests("static")


def test_ranks_leave_when_the_launcher_is_killed(bench: Bench, command: Command) -> None:
    process = command.start("static", 3, Order(1, "solve:task", 6, "hold"))
    command.wait_for_hit()
    ranks = {event.pid for event in command.events()}
    assert len(ranks) == 3
    watched = [os.pidfd_open(pid) for pid in ranks]
    process.kill()
    process.wait()
    for descriptor in watched:  # the held rank, too
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(1000 * LEAVE_SECONDS), "a rank outlives its launcher"
        os.close(descriptor)
    for rank in range(3):
        log = (bench.work / f"rank-{rank}.log").read_text()
        assert "leaving with code=75: the launcher is gone" in log


@pytest.mark.parametrize(
    ("recipe", "event", "count"),
    [
        pytest.param("static", "solve:task", 6, marks=pytest.mark.soak),
        ("gptq", "journal:half", 4),
        pytest.param("every-3", "layer:half", 60, marks=pytest.mark.soak),
        ("replace", "publish:after-rename", 1),
        pytest.param("replace", "publish:after-rename", 2, marks=pytest.mark.soak),
    ],
)
def test_run_goes_on_after_all_died_at_once(
    bench: Bench, undisturbed: Undisturbed, command: Command, recipe: str, event: str, count: int
) -> None:
    if recipe == "replace":
        bench.output.mkdir()
        (bench.output / "old").write_text("an output of before")
    process = command.start(recipe, 2, Order(0, event, count, "kill-group"))
    assert process.wait() == -signal.SIGKILL
    if bench.output.exists():
        assert count == 2
        assert digests(bench.output) == undisturbed.digests(recipe), "whole or not at all"
    run = bench.run(recipe, 3)  # the lock was freed
    assert run.outcome.exit_code == 0, run.outcome
    assert digests(bench.output) == undisturbed.digests(recipe)
    assert bench.leftovers() == []


def test_run_goes_on_where_a_rejected_result_was_moved_away(bench: Bench) -> None:
    crashed = bench.run("rejected", 2, Order(0, "publish:after-rename"))
    assert crashed.outcome.exit_code == 75, crashed.outcome
    assert not bench.output.exists()
    run = bench.run("rejected", 1)
    assert run.outcome.exit_code == 65, run.outcome
    assert "maxPerplexityRatio" in run.outcome.cause
    assert not bench.output.exists()
    names = {"result.rejected", "result.rejected.report.json", "result.rejected.report.md"}
    assert set(bench.leftovers()) == names


FROZEN_AT = [
    ("solve:task", 6),
    ("layer:half", 40),
    ("layer:before-rename", 3),
    ("carry:after-rename", 3),
    ("journal:half", 3),
    ("journal:before-rename", 4),
    ("report:before-rename", 1),
    ("publish:before-rename", 1),
    ("publish:after-rename", 1),
    ("removal:half", 1),
]


@pytest.mark.parametrize(
    ("successor", "event", "count"),
    [
        ("finished", "layer:before-rename", 3),
        ("began", "journal:before-rename", 4),
        *(
            pytest.param(successor, *place, marks=pytest.mark.soak)
            for successor in ("finished", "began")
            for place in FROZEN_AT
        ),
    ],
)
def test_attempt_that_was_followed_changes_nothing_more(
    bench: Bench, command: Command, successor: str, event: str, count: int
) -> None:
    process = command.start("static", 2, Order(0, event, count, "freeze"))
    frozen = command.wait_for_hit()
    copy = bench.root / "rank-0.log"
    copy.hardlink_to(bench.work / "rank-0.log")  # stays when the work folder goes
    alive = os.pidfd_open(frozen.pid)
    process.kill()
    process.wait()
    later = None if successor == "finished" else Order(1, "begin")
    if event in ("publish:after-rename", "removal:half"):
        later = None  # there is nothing left to begin
    outcome = bench.run("static", 2, later).outcome
    assert outcome.exit_code == (0 if later is None else 75), outcome
    before = stamps(bench.root / "out")

    os.kill(frozen.pid, signal.SIGCONT)
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    assert poll.poll(1000 * LEAVE_SECONDS), "it does not leave"
    os.close(alive)
    assert stamps(bench.root / "out") == before
    # whichever thread comes first: that which misses the launcher, or that which meets the fence
    gone = "leaving with code=75: the launcher is gone"
    fenced = "TryAgain: (attempt 1 was followed by attempt 2|work folder .* was taken away)"
    assert re.search(f"{gone}|{fenced}", copy.read_text())


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of all files but logs."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".log"
    }

"""The operator killed at every step of a job's life, and at random with many (T04, C6, C23)."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from child_process import wait_for
from control_plane import OPERATOR_TOKEN, ControlPlane
from fault_proxy import Call, Fault, FaultProxy, fault_proxy
from job_lives import LIVES, Care, judge
from operator_process import OperatorProcess
from plane_fixtures import new_namespace
from restart_run import BOUND_SECONDS, catch_up
from status_history import StatusHistory, status_history
from workplaces import Workplace, open_workplace

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(1200)]

STEPS_IN_SUITE = 3
CALLS_OF_A_LIFE = range(1, 13)
"""Calls among which the suite draws; a life has a dozen to two dozen, the soak goes through all."""
MOST_CALLS = 200
JOBS = 20
AWAY_SECONDS = 60
UNDER_FIRE_SECONDS = 900.0
"""An operator that is killed all the time does a dozen calls a life of its own."""
KINDS = ("call", "cut_after")


@pytest.fixture(scope="module")
def road(plane: ControlPlane) -> Iterator[FaultProxy]:
    with fault_proxy(plane.server, plane.authority) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def mortal(
    plane: ControlPlane, road: FaultProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workplace]:
    """An operator that is killed again and again."""
    folder: Path = tmp_path_factory.mktemp("mortal")
    namespace = new_namespace(plane.cluster, "crashes")
    with open_workplace(plane, namespace, folder, server=road.url) as opened:
        yield opened


@pytest.fixture
def history(mortal: Workplace) -> Iterator[StatusHistory]:
    with status_history(mortal.cluster, mortal.namespace) as running:
        yield running


def reviver(operator: OperatorProcess) -> Callable[[], None]:
    """Starts the operator anew whenever it is found dead."""

    def revive() -> None:
        if not operator.alive():
            operator.start(wait=False)

    return revive


def kill_at(operator: OperatorProcess, step: int, kind: str) -> Fault:
    """Kills the operator at its step-th call from now on that is no watch."""
    seen = 0

    def strikes(call: Call) -> bool:
        nonlocal seen
        if call.watch:
            return False
        seen += 1
        return seen == step

    return Fault(kind=kind, strikes=strikes, then=operator.kill_at_once)  # type: ignore[arg-type]


def live_and_die(
    mortal: Workplace, road: FaultProxy, history: StatusHistory, life: str, step: int, kind: str
) -> bool:
    """Live a life with one death on the way; whether the life had so many steps."""
    revive = reviver(mortal.operator)
    revive()
    mortal.operator.wait_ready()
    road.inject(kill_at(mortal.operator, step, kind))
    try:
        judge(*LIVES[life](mortal, Care(revive=revive)))
        return road.pending() == []
    finally:
        road.clear()
        assert history.regressions() == []


def drawn_steps(life: str) -> list[int]:
    return sorted(random.Random(life).sample(CALLS_OF_A_LIFE, STEPS_IN_SUITE))


@pytest.mark.parametrize(
    ("life", "step"), [(life, step) for life in LIVES for step in drawn_steps(life)]
)
def test_c23_killed_after_some_call(
    mortal: Workplace, road: FaultProxy, history: StatusHistory, life: str, step: int
) -> None:
    """The call was carried out; its answer reached the operator or, for odd steps, did not."""
    live_and_die(mortal, road, history, life, step, "cut_after" if step % 2 else "call")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["call", "cut_after"])
@pytest.mark.parametrize("life", LIVES)
def test_c23_killed_after_every_call(
    mortal: Workplace, road: FaultProxy, history: StatusHistory, life: str, kind: str
) -> None:
    steps = 1
    while live_and_die(mortal, road, history, life, steps, kind):
        steps += 1
        assert steps < MOST_CALLS
    assert steps > 3, "a life has more calls than that"


def live_many(mortal: Workplace, seed: int, count: int, care: Care) -> "list[Future[None]]":
    """Lives drawn by a seed, all at once, each in a thread; done when all futures are."""

    def whole(life: str) -> None:
        judge(*LIVES[life](mortal, care))

    lives = random.Random(seed).choices(sorted(LIVES), k=count)
    pool = ThreadPoolExecutor(max_workers=count)
    futures = [pool.submit(whole, life) for life in lives]
    pool.shutdown(wait=False)
    return futures


def raise_first(futures: "list[Future[None]]", *, seconds: float) -> None:
    """Wait for all, and raise what the first one that failed raised."""
    done = wait(futures, timeout=seconds, return_when=FIRST_EXCEPTION)
    for future in done.done:
        future.result()
    assert not done.not_done


def kill_at_random(mortal: Workplace, road: FaultProxy, *, seed: int, kills: int) -> None:
    """SIGKILL at random calls while 20 jobs are in flight; the main thread starts it again."""
    drawn = random.Random(seed)
    care = Care(seconds=UNDER_FIRE_SECONDS)
    futures = live_many(mortal, seed, JOBS, care)

    def died() -> bool:
        return not mortal.operator.alive() or all(future.done() for future in futures)

    for _ in range(kills):
        road.inject(kill_at(mortal.operator, drawn.randint(1, 40), drawn.choice(KINDS)))
        wait_for("a death or the end", died, seconds=120)
        road.clear()
        if mortal.operator.alive():
            futures += live_many(mortal, drawn.randint(0, 1 << 30), JOBS, care)
        else:
            mortal.operator.start()
    raise_first(futures, seconds=120)


def test_killed_at_random_with_20_jobs_in_flight(
    mortal: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    mortal.operator.ensure_started()
    kill_at_random(mortal, road, seed=1, kills=5)
    assert history.regressions() == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_killed_at_200_random_points(
    mortal: Workplace, road: FaultProxy, history: StatusHistory, seed: int
) -> None:
    mortal.operator.ensure_started()
    kill_at_random(mortal, road, seed=seed, kills=20)
    assert history.regressions() == []


def test_the_api_server_away_for_a_minute_with_20_jobs_in_flight(
    mortal: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    """Pods go on meanwhile; what ended is told within seconds of the return."""
    mortal.operator.ensure_started()
    futures = live_many(mortal, 3, JOBS, Care())
    wait_for(
        "some jobs under way",
        lambda: sum(bool(history.of(uid)) for uid in history.jobs()) >= JOBS // 2,
    )
    road.go_down()
    time.sleep(AWAY_SECONDS)  # how long it is away is what is tested
    road.come_up()
    raise_first(futures, seconds=90)
    assert history.regressions() == []
    assert mortal.operator.alive()


def test_two_operators_at_once_do_no_harm(
    plane: ControlPlane, mortal: Workplace, history: StatusHistory, tmp_path: Path
) -> None:
    mortal.operator.ensure_started()
    second = OperatorProcess(
        kubeconfig=plane.kubeconfig(tmp_path / "kubeconfig", token=OPERATOR_TOKEN),
        namespaces=mortal.operator.namespaces,
        folder=tmp_path,
    )
    try:
        second.start()
        raise_first(live_many(mortal, 4, JOBS // 2, Care()), seconds=180)
    finally:
        second.kill()
    assert history.regressions() == []


def test_an_operator_that_was_away_catches_up_at_once(
    mortal: Workplace, history: StatusHistory
) -> None:
    """20 jobs each moved on without it; `make bench` gives the seconds, the limit is six times."""
    mortal.operator.ensure_started()
    catch_up(mortal, JOBS, seconds=6 * BOUND_SECONDS)
    assert history.regressions() == []

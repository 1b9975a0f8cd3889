"""Faults of the API server, injected by a proxy before the real one (T11, C15, C22)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from child_process import wait_for
from control_plane import ControlPlane
from fault_proxy import Call, Fault, FaultProxy, fault_proxy
from job_lives import LIVES, Care, judge
from plane_fixtures import new_namespace
from quantization_jobs import publishes
from status_history import StatusHistory, status_history
from workplaces import Workplace, open_workplace

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module")
def road(plane: ControlPlane) -> Iterator[FaultProxy]:
    """The way to the API server that tests of this file break."""
    with fault_proxy(plane.server, plane.authority) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def traveller(
    plane: ControlPlane, road: FaultProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workplace]:
    """An operator that must bear all of it without being started again."""
    folder: Path = tmp_path_factory.mktemp("traveller")
    namespace = new_namespace(plane.cluster, "faults")
    with open_workplace(plane, namespace, folder, server=road.url) as opened:
        yield opened


@pytest.fixture
def history(traveller: Workplace) -> Iterator[StatusHistory]:
    with status_history(traveller.cluster, traveller.namespace) as running:
        yield running


def live(traveller: Workplace, road: FaultProxy, history: StatusHistory, *names: str) -> None:
    """Live through these lives under the faults that were injected; all of them must strike."""
    try:
        for name in names:
            judge(*LIVES[name](traveller, Care()))
        assert road.pending() == []
    finally:
        road.clear()
        road.speak()
        road.come_up()
    assert history.regressions() == []
    assert traveller.operator.alive()


def any_write(call: Call) -> bool:
    return call.writes


def status_write(call: Call) -> bool:
    return call.writes and "quantizationjobs" in call.path and call.path.endswith("/status")


def job_creation(call: Call) -> bool:
    return call.method == "POST" and call.path.endswith("/jobs")


def job_deletion(call: Call) -> bool:
    return call.method == "DELETE" and "/jobs/" in call.path


def any_call(call: Call) -> bool:
    return not call.watch


def any_watch(call: Call) -> bool:
    return call.watch


@pytest.mark.parametrize("status", [500, 503])
def test_t11_a_burst_of_server_errors_is_outlived(
    traveller: Workplace, road: FaultProxy, history: StatusHistory, status: int
) -> None:
    road.inject(Fault(kind="answer", strikes=any_write, status=status, times=5))
    live(traveller, road, history, "success")


def test_t11_conflicts_of_status_writes_mean_look_again(
    traveller: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    road.inject(Fault(kind="answer", strikes=status_write, status=409, times=4))
    live(traveller, road, history, "failure")


def test_t11_too_many_requests_are_repeated_when_the_server_says(
    traveller: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    before = len(road.calls)
    road.inject(Fault(kind="answer", strikes=status_write, status=429, retry_after=2, times=1))
    live(traveller, road, history, "success")
    writes = [call for call in road.calls[before:] if status_write(call)]
    assert writes[1].path == writes[0].path
    assert writes[1].at - writes[0].at >= 1.9


@pytest.mark.parametrize("kind", ["cut", "cut_after"])
@pytest.mark.parametrize(
    "strikes", [any_write, status_write, job_creation], ids=["any", "status", "creation"]
)
def test_c22_answers_that_never_come_make_no_second_job(
    traveller: Workplace,
    road: FaultProxy,
    history: StatusHistory,
    kind: str,
    strikes: Callable[[Call], bool],
) -> None:
    road.inject(Fault(kind=kind, strikes=strikes, times=2))  # type: ignore[arg-type]
    live(traveller, road, history, "failure")


@pytest.mark.parametrize("kind", ["answer", "cut"])
def test_t11_deletions_that_fail_after_the_final_status_are_repeated(
    traveller: Workplace, road: FaultProxy, history: StatusHistory, kind: str
) -> None:
    """Failed is written first and stays; the Job and its pods go when they can."""
    road.inject(Fault(kind=kind, strikes=job_deletion, status=500, times=4))  # type: ignore[arg-type]
    try:
        job = traveller.submit("late", policy={"activeDeadlineSeconds": 5})
        job.wait_job(1)
        job.wait_condition("Failed")
        wait_for("nothing left of the gang", lambda: not job.jobs() and not job.pods())
        assert road.pending() == []
    finally:
        road.clear()
    assert history.regressions() == []


def test_c22_a_call_that_is_never_answered_holds_nothing_up_for_long(
    traveller: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    road.inject(Fault(kind="stall", strikes=status_write, times=1))
    live(traveller, road, history, "success", "success")


def test_t11_watches_that_are_cut_are_opened_again(
    traveller: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    road.cut_connections()
    live(traveller, road, history, "success")
    road.cut_connections()
    live(traveller, road, history, "disruption")


def test_t11_an_expired_watch_lists_anew(
    traveller: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    """410 Gone as an event of the watch, for each of the operator's watches and more."""
    road.inject(Fault(kind="expire", strikes=any_watch, times=6))
    road.cut_connections()
    live(traveller, road, history, "success", "failure")


def test_t11_a_watch_that_is_refused_for_a_while_is_tried_again(
    traveller: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    road.inject(Fault(kind="answer", strikes=any_watch, status=429, retry_after=1, times=3))
    road.inject(Fault(kind="answer", strikes=any_watch, status=500, times=3))
    road.inject(Fault(kind="answer", strikes=any_watch, status=403, times=1))
    road.cut_connections()
    live(traveller, road, history, "success")


def test_c15_an_operator_whose_watch_is_refused_for_good_ends_and_is_no_zombie(
    traveller: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    """The watching library gives up; whoever runs the operator starts it anew."""
    road.inject(Fault(kind="answer", strikes=any_watch, status=410, times=1))
    road.cut_connections()
    wait_for("the operator ended", lambda: not traveller.operator.alive(), seconds=60)
    traveller.operator.start()
    live(traveller, road, history, "success")


def test_t11_a_watch_that_falls_silent_is_noticed(
    traveller: Workplace, road: FaultProxy, history: StatusHistory
) -> None:
    """The connections stay open and say nothing more: no bookmark, no event, no end."""
    road.fall_silent()
    live(traveller, road, history, "success")
    wait_for("healthy", lambda: traveller.operator.answers("healthz"), seconds=120)


def test_c15_a_deaf_operator_works_on_by_its_resync_and_says_that_it_is_not_healthy(
    plane: ControlPlane, road: FaultProxy, namespace: str, tmp_path: Path
) -> None:
    """Liveness covers the watch, not only the loop."""
    settings = {"QUANTFLEET_RESYNC_SECONDS": "2"}
    with open_workplace(plane, namespace, tmp_path, server=road.url, settings=settings) as deaf:
        deaf.submit("heard", behaviour=publishes).wait_condition("Complete")
        road.fall_silent()
        try:
            deaf.submit("unheard", behaviour=publishes).wait_condition("Complete")
            wait_for("not healthy", lambda: change_and_ask(deaf), seconds=60, every=0.5)
        finally:
            road.speak()
        wait_for("healthy again", lambda: deaf.operator.answers("healthz"), seconds=60)


def change_and_ask(deaf: Workplace) -> bool:
    """Make something happen that a watch should tell; whether liveness fails by now."""
    deaf.submit("change", policy={"suspend": True})
    return not deaf.operator.answers("healthz")

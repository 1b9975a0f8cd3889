"""Progress in the status: how often, by whom, and that neither faults nor restarts lose the last.

The status is compared with what REST showed (C22), writes are counted in the audit log (C16).
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from child_process import wait_for
from cluster_access import Json
from control_plane import OPERATOR_USER, ControlPlane
from fault_proxy import Fault, FaultProxy
from quantfleet_api.status import JobStatus
from reporting_jobs import FAST, Reporting, ServerPlace, open_server_place, rank
from server_load import run_load

pytestmark = pytest.mark.controlplane
WRITE_SECONDS = int(FAST["QUANTFLEET_WRITE_SECONDS"])


@pytest.fixture
def job(server_place: ServerPlace) -> Reporting:
    return server_place.submit()


@pytest.fixture
def proxied(
    plane: ControlPlane, namespace: str, tmp_path: Path, proxy: FaultProxy
) -> Iterator[ServerPlace]:
    """A server that reaches the API server through `proxy` only."""
    with open_server_place(plane, namespace, tmp_path, address=proxy.url) as opened:
        yield opened


def writes(plane: ControlPlane, job: Reporting) -> list[Json]:
    """The server's writes into a status, from the audit log."""
    return [
        entry
        for entry in plane.audited(OPERATOR_USER)
        if entry["verb"] == "patch"
        and entry["objectRef"].get("name") == job.name
        and entry["objectRef"].get("subresource") == "status"
    ]


def shown(place: ServerPlace, job: Reporting) -> Json:
    """What REST shows of a job's status."""
    answer = place.reader().get(job.path)
    assert answer.status == 200, answer.body
    return dict(answer.body["status"])


def test_c16_writes_are_few_and_the_last_state_is_among_them(
    server_place: ServerPlace, plane: ControlPlane, job: Reporting
) -> None:
    worker, started, layer = job.worker(), time.monotonic(), 0
    while time.monotonic() - started < 2.5 * WRITE_SECONDS:
        layer += job.post(worker, rank(layer=layer + 1, numLayers=9000)).status == 200
    posted = layer
    wait_for("last state", lambda: job.progress().get("layersCompleted") == posted)
    took = time.monotonic() - started
    assert 1 <= len(writes(plane, job)) <= 2 + took / WRITE_SECONDS
    assert posted > 3 * len(writes(plane, job))


def test_c16_a_new_stage_is_written_within_seconds(plane: ControlPlane, job: Reporting) -> None:
    worker = job.worker()
    for stage in ("Planning", "Calibrating", "Verifying", "Publishing"):
        job.post(worker, rank(stage=stage))
        wait_for(stage, lambda stage=stage: job.progress().get("stage") == stage, seconds=6)
    assert len(writes(plane, job)) == 4


def test_c14_progress_is_the_servers_field_and_it_has_no_other(job: Reporting) -> None:
    job.post(job.worker())
    wait_for("progress", job.progress)
    owners = {
        entry["manager"]: set(entry["fieldsV1"].get("f:status", {}))
        for entry in job.read()["metadata"]["managedFields"]
        if entry.get("subresource") == "status"
    }
    assert owners["quantfleet-server"] == {"f:progress"}


def test_c11_the_end_is_written_before_it_is_answered(job: Reporting) -> None:
    worker = job.worker()
    job.post(worker, rank(layer=8, numLayers=9))
    summary = {"digest": "sha256:" + "5" * 64, "sizeBytes": 5, "fileCount": 2, "warnings": 0}

    last = rank(layer=9, numLayers=9, stage="Done")
    answer = job.post(worker, last, final=True, summary=summary)

    assert answer.status == 200
    assert job.progress()["stage"] == "Done"
    assert job.progress()["percent"] == 100


def test_c11_the_end_that_comes_too_late_is_a_conflict(
    proxied: ServerPlace, proxy: FaultProxy
) -> None:
    """The server's watch is silent, so the API server alone knows that the job has ended."""
    job = proxied.submit()
    worker = job.worker()
    job.post(worker, rank(layer=8, numLayers=9))
    wait_for("progress", job.progress)
    proxy.fall_silent()
    job.complete()
    ended = job.read()["status"]

    answer = job.post(worker, rank(layer=9, numLayers=9, stage="Done"), final=True)

    assert answer.status == 409, answer.body
    assert job.read()["status"] == ended


def test_c22_the_status_was_shown_before_and_both_are_equal_at_the_end(
    server_place: ServerPlace, job: Reporting
) -> None:
    worker, seen = job.worker(), []
    for layer in range(8):
        job.post(worker, rank(layer=layer, numLayers=8))
        seen.append(shown(server_place, job).get("progress"))
        written = job.progress()
        assert not written or written in seen
        wait_for("room for the next report", room_from(time.monotonic() + 0.5))
    done = rank(layer=8, numLayers=8, stage="Done")
    assert job.post(worker, done, final=True).status == 200
    job.complete()
    wait_for("equal", lambda: shown(server_place, job) == with_defaults(job))
    percents = [progress["percent"] for progress in seen if progress]
    assert percents == sorted(percents)


def room_from(moment: float) -> Callable[[], bool]:
    """A pod may report twice a second."""
    return lambda: time.monotonic() > moment


def with_defaults(job: Reporting) -> Json:
    """The object's status, as its schema fills it up; the operator writes all of it itself."""
    status = JobStatus.model_validate(job.read()["status"])
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def test_a_restart_loses_nothing_that_watchers_need(own_server_place: ServerPlace) -> None:
    place = own_server_place
    job = place.submit()
    worker = job.worker()
    layers = [{"layer": 0, "seconds": 1.5, "repeated": False}]
    job.post(worker, rank(layer=6, numLayers=9), layers=layers)
    stream = place.reader().follow(f"{job.path}/events")
    last = stream.next("snapshot").id
    written = wait_for("progress", job.progress)

    place.server.kill()
    place.server.start()

    stream.close()
    assert shown(place, job)["progress"] == written
    again = place.reader().follow(f"{job.path}/events", last)
    event = again.next("snapshot", "progress")
    assert event.kind == "snapshot"
    assert event.data["status"]["progress"] == written
    # one that lags behind does not turn the progress back
    answer = job.post(worker, rank(layer=5, numLayers=9))
    assert answer.body["knownLayers"] == 0
    assert again.next("progress").data["layersCompleted"] == 6
    assert job.post(worker, rank(layer=6, numLayers=9), layers=layers).body["knownLayers"] == 1
    again.close()


def test_a_server_that_is_told_to_stop_writes_what_it_has(own_server_place: ServerPlace) -> None:
    job = own_server_place.submit()
    worker = job.worker()
    for layer in range(1, 4):
        job.post(worker, rank(layer=layer, numLayers=9))
    stream = own_server_place.reader().follow(f"{job.path}/events")
    stream.next("snapshot")
    assert own_server_place.server.stop() == 0, own_server_place.server.log()
    assert job.progress()["layersCompleted"] == 3
    assert "Traceback" not in own_server_place.server.log()
    # it is the server that ends, not the job
    assert "end" not in {event.kind for event in stream}
    stream.close()


def test_a_watch_that_expired_or_broke_misses_nothing(
    proxied: ServerPlace, proxy: FaultProxy
) -> None:
    job = proxied.submit()
    for kind in ("expire", "cut"):
        proxy.inject(Fault(kind=kind, strikes=lambda call: call.watch))  # type: ignore[arg-type]
        proxy.cut_connections()
        wait_for(f"{kind} struck", lambda: not proxy.pending())
        phase = "Calibrating" if kind == "expire" else "Publishing"
        job.write_status(phase=phase)
        wait_for(phase, lambda phase=phase: shown(proxied, job).get("phase") == phase)
    other = proxied.submit("other")
    wait_for("other seen", lambda: proxied.reader().get(other.path).status == 200)


def test_an_api_server_that_is_away_costs_no_report(
    proxied: ServerPlace, proxy: FaultProxy
) -> None:
    job = proxied.submit()
    worker, reader = job.worker(), proxied.reader()
    assert job.post(worker, rank(layer=1, numLayers=9)).status == 200
    assert reader.get(job.path).status == 200
    proxy.go_down()
    newcomer = job.worker()
    answer = job.post(newcomer)
    assert answer.status == 503, answer.body
    assert answer.body["kind"] == "Status"
    assert "Retry-After" in answer.headers
    assert proxied.server.client().get("/healthz").status == 200
    proxy.come_up()
    wait_for("taken again", lambda: job.post(worker, rank(layer=2, numLayers=9)).status == 200)
    wait_for("last state", lambda: job.progress().get("layersCompleted") == 2)


@pytest.mark.parametrize("fresh", [False, True], ids=["kept connections", "one a report"])
def test_the_last_state_reaches_everybody_under_load(
    own_server_place: ServerPlace, fresh: bool
) -> None:
    """A little of what `python -m benchmarks --only server` does; there are the bounds."""
    load = {"jobs": 6, "pods": 3, "watchers": 24, "fresh": fresh}
    figures = run_load(own_server_place, a_second=30, seconds=3, **load)
    assert figures.watchers_without_last_state == 0
    assert figures.statuses_without_last_state == 0
    assert figures.refused == 0
    assert figures.events > figures.watchers

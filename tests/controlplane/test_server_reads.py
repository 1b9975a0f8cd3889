"""Reading on a real API server: who may, what is shown, and streams of events."""

import pytest

from child_process import wait_for
from quantfleet_api.report import job_path
from reporting_jobs import Reporting, ServerPlace, rank, token_of
from server_process import Answer

pytestmark = pytest.mark.controlplane
LIST = "/apis/v1alpha1/namespaces/{}/quantizationjobs"


@pytest.fixture
def job(server_place: ServerPlace) -> Reporting:
    return server_place.submit()


def names(answer: Answer) -> set[str]:
    assert answer.status == 200, answer.body
    return {item["metadata"]["name"] for item in answer.body["items"]}


def test_every_part_of_a_job_can_be_read(server_place: ServerPlace, job: Reporting) -> None:
    layer = {"layer": 0, "seconds": 2.5, "relativeError": 0.02, "repeated": False}
    job.post(job.worker(), rank(0, layer=1, numLayers=4), rank(1, layer=1, numLayers=4))
    job.post(job.worker(), rank(2, layer=1, numLayers=4), pod=1)
    job.post(job.worker(), rank(0, layer=1, numLayers=4), layers=[layer])
    read = server_place.reader()

    one = read.get(job.path)
    progress = read.get(f"{job.path}/progress").body
    ranks = read.get(f"{job.path}/ranks").body
    layers = read.get(f"{job.path}/layers").body
    output = read.get(f"{job.path}/output").body

    assert one.status == 200
    assert one.headers["Cache-Control"] == "no-store"
    assert one.body["metadata"]["uid"] == job.uid
    assert one.body["status"]["progress"] == progress["progress"]
    assert [(r["pod"], r["report"]["rank"]) for r in ranks["ranks"]] == [(0, 0), (0, 1), (1, 2)]
    assert [found["report"] for found in layers["layers"]] == [layer]
    assert output == {}
    assert job.name in names(read.get(LIST.format(job.namespace)))


def test_events_of_kubernetes_are_shown(server_place: ServerPlace, job: Reporting) -> None:
    about = {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "namespace": job.namespace,
        "name": job.name,
        "uid": job.uid,
    }
    event = {
        "metadata": {"name": f"{job.name}.1"},
        "involvedObject": about,
        "reason": "WorkersReady",
        "message": "all 2 workers are ready",
        "type": "Normal",
        "lastTimestamp": "2026-11-30T12:00:00Z",
    }
    job.cluster.create("events", event, namespace=job.namespace)

    (found,) = server_place.reader().get(f"{job.path}/history").body["items"]

    assert (found["reason"], found["time"]) == ("WorkersReady", "2026-11-30T12:00:00Z")


def test_reading_needs_a_token_of_the_servers_own_audience(
    server_place: ServerPlace, job: Reporting
) -> None:
    account = ("default", "https://kubernetes.default.svc.cluster.local")
    stranger = server_place.server.client(token_of(job.cluster, job.namespace, *account))
    for client in (server_place.server.client(), job.worker(), stranger):
        for path in (job.path, LIST.format(job.namespace), f"{job.path}/events"):
            answer = client.get(path)
            assert answer.status == 401, (path, answer.body)
            assert answer.body["reason"] == "Unauthorized"
    admin = server_place.server.client("admin-token-of-a-test")
    assert admin.get(job.path).status == 401


def test_who_may_not_get_a_job_is_not_told_whether_it_is_there(
    server_place: ServerPlace, job: Reporting
) -> None:
    stranger = server_place.user("stranger", [])
    for path in (job.path, job_path(job.namespace, "none-of-that-name")):
        for part in ("", "/progress", "/ranks", "/layers", "/output", "/history", "/events"):
            assert stranger.get(path + part).status == 403, part
    assert stranger.get(LIST.format(job.namespace)).status == 403
    assert names(stranger.get("/apis/v1alpha1/quantizationjobs")) == set()
    assert server_place.reader().get(job_path(job.namespace, "absent")).status == 404


def test_a_list_shows_what_the_caller_may_see(server_place: ServerPlace) -> None:
    mine, other = server_place.submit("mine"), server_place.submit("theirs")
    some = server_place.user("some", ["get"], only=[mine.name])
    where = LIST.format(server_place.namespace)

    wait_for(
        "both seen", lambda: {mine.name, other.name} <= names(server_place.reader().get(where))
    )
    assert names(some.get(where)) == {mine.name}
    assert some.get(other.path).status == 403
    everywhere = names(server_place.reader().get("/apis/v1alpha1/quantizationjobs"))
    assert {mine.name, other.name} <= everywhere


def test_a_right_that_was_taken_away_is_gone_soon(
    server_place: ServerPlace, job: Reporting
) -> None:
    leaver = server_place.user("leaver", ["get"])
    assert leaver.get(job.path).status == 200
    job.cluster.kubectl("delete", "rolebinding", "leaver", "-n", job.namespace)
    wait_for("right gone", lambda: leaver.get(job.path).status == 403, seconds=66, every=0.5)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/apis", 404),
        ("GET", "/apis/v1alpha1/namespaces/a/quantizationjobs/b/secrets", 404),
        ("GET", "/apis/v1alpha1/namespaces/a/../quantizationjobs", 404),
        ("DELETE", "/apis/v1alpha1/namespaces/a/quantizationjobs/b", 405),
        ("PUT", "/apis/v1alpha1/namespaces/a/quantizationjobs/b/progress", 405),
        ("GET", "/docs", 404),
    ],
)
def test_unknown_paths_and_methods_are_statuses(
    server_place: ServerPlace, method: str, path: str, status: int
) -> None:
    answer = server_place.server.client().call(method, path)
    assert answer.status == status
    assert answer.body["kind"] == "Status"
    assert answer.body["code"] == status


def test_a_stream_begins_with_the_job_and_brings_what_happens(
    server_place: ServerPlace, job: Reporting
) -> None:
    worker = job.worker()
    job.post(worker, rank(layer=1, numLayers=4))
    stream = server_place.reader().follow(f"{job.path}/events")
    assert stream.status == 200
    first = stream.next("snapshot")
    assert first.data["status"]["progress"]["layersCompleted"] == 1

    layer = {"layer": 1, "seconds": 2.5, "repeated": False}
    job.post(worker, rank(layer=2, numLayers=4), layers=[layer])
    told = stream.next("layers").data["layers"]
    assert [(entry["layer"], entry["seconds"]) for entry in told] == [(1, 2.5)]
    assert stream.next("progress").data["layersCompleted"] == 2
    job.write_status(phase="Publishing")
    while stream.next("status").data["phase"] != "Publishing":
        pass
    job.complete()
    while stream.next("status").data["phase"] != "Succeeded":
        pass
    last = stream.next("end")
    assert list(stream) == []
    stream.close()
    again = server_place.reader().follow(f"{job.path}/events", last.id)
    assert again.status == 204  # a browser that gets it asks no more
    again.close()


def test_a_stream_goes_on_from_the_last_event(server_place: ServerPlace, job: Reporting) -> None:
    worker, reader = job.worker(), server_place.reader()
    stream = reader.follow(f"{job.path}/events")
    stream.next("snapshot")
    job.post(worker, rank(layer=1, numLayers=4))
    last = stream.next("progress")
    stream.close()
    job.post(worker, rank(layer=2, numLayers=4))

    again = reader.follow(f"{job.path}/events", last.id)
    event = again.next("progress", "snapshot")
    assert (event.kind, event.data["layersCompleted"]) == ("progress", 2)
    again.close()

    other = reader.follow(f"{job.path}/events", "another-start-17")
    assert next(iter(other)).kind == "snapshot"
    other.close()


def test_a_job_that_is_deleted_ends_its_streams(server_place: ServerPlace, job: Reporting) -> None:
    stream = server_place.reader().follow(f"{job.path}/events")
    stream.next("snapshot")
    job.delete()
    assert stream.next("deleted").data == {"uid": job.uid}
    assert [event.kind for event in stream] == ["end"]
    stream.close()

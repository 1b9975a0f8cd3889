"""Reports on a real API server with real tokens: what is taken, and what is refused (T08)."""

import base64
import json
import time
from datetime import datetime

import pytest

from child_process import wait_for
from cluster_access import Json
from quantfleet_api.names import token_audience
from quantfleet_api.report import MOST_BODY_BYTES, server_audience
from reporting_jobs import Reporting, ServerPlace, rank, token_of
from server_process import Answer, Client

pytestmark = pytest.mark.controlplane


def refused(answer: Answer, status: int, told: str) -> None:
    """The answer is a metav1.Status of this code whose message holds these words."""
    assert answer.status == status, answer.body
    assert answer.body["kind"] == "Status"
    assert answer.body["apiVersion"] == "v1"
    assert answer.body["status"] == "Failure"
    assert answer.body["code"] == status
    assert told in answer.body["message"], answer.body


@pytest.fixture
def job(server_place: ServerPlace) -> Reporting:
    return server_place.submit()


def with_token(job: Reporting, audience: str, *, account: str = "", **more: Json) -> Client:
    """Somebody with a token of the job's account (or another) for an audience."""
    token = token_of(job.cluster, job.namespace, account or job.account, audience, **more)
    return job.server.client(token)


def test_t08_a_report_reaches_readers_and_the_status(
    server_place: ServerPlace, job: Reporting
) -> None:
    report = rank(of=1, layer=3, numLayers=10, microBatch=4, numMicroBatches=8)

    answer = job.post(job.worker(), report)

    assert answer.status == 200, answer.body
    assert answer.body == {"stale": False, "knownLayers": 0, "minIntervalSeconds": 1.0}
    shown = server_place.reader().get(job.path).body["status"]["progress"]
    assert (shown["layersCompleted"], shown["totalLayers"]) == (3, 10)
    written = wait_for("progress in the status", job.progress)
    assert written == shown


@pytest.mark.parametrize("scheme", ["bearer", "BEARER"])
def test_t08_bearer_may_be_written_in_any_case(job: Reporting, scheme: str) -> None:
    worker = job.worker()
    worker.scheme = scheme
    assert job.post(worker).status == 200


def test_t08_no_token_is_refused(job: Reporting) -> None:
    answer = job.post(job.server.client())
    refused(answer, 401, "bearer token is needed")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "audience", ["", server_audience(), "quantfleet/", token_audience("0" * 32, 1)]
)
def test_t08_a_token_for_another_audience_is_refused(job: Reporting, audience: str) -> None:
    answer = job.post(with_token(job, audience or "https://kubernetes.default.svc"))
    if audience == token_audience("0" * 32, 1):  # a token that is true, for a job that is not
        refused(answer, 403, "another job")
    else:
        refused(answer, 401, "not for reports of a job")


def test_t08_the_token_of_another_job_is_refused(server_place: ServerPlace, job: Reporting) -> None:
    other = server_place.submit("other")
    refused(other.post(job.worker()), 403, "for another job")
    account = with_token(other, other.audience(), account=job.account)
    refused(other.post(account), 403, f"service account {other.account}")
    assert other.progress() == {}


def test_t08_another_account_of_the_namespace_cannot_report(job: Reporting) -> None:
    answer = job.post(with_token(job, job.audience(), account="default"))
    refused(answer, 403, f"service account {job.account}")


def test_t08_a_job_of_another_namespace_cannot_be_reported_for(
    server_place: ServerPlace, job: Reporting, namespace: str
) -> None:
    account = {"metadata": {"name": job.account}}
    job.cluster.create("serviceaccounts", account, namespace=namespace)
    token = token_of(job.cluster, namespace, job.account, job.audience())
    refused(job.post(job.server.client(token)), 403, f"service account {job.account}")
    elsewhere = job.path.replace(server_place.namespace, namespace)
    answer = job.worker().post(f"{elsewhere}/progress", job.report())
    refused(answer, 404, "not found")


def test_t08_an_expired_token_is_refused_without_asking(
    job: Reporting, server_place: ServerPlace
) -> None:
    """The API server makes none that ends soon, so the end is written into a real one."""
    spoilt = with_end(job.worker().token, int(time.time()) - 1)
    before = reviews(server_place)
    answer = job.post(job.server.client(spoilt))
    refused(answer, 401, "expired")
    assert reviews(server_place) == before


def test_t08_a_forged_token_is_refused_by_the_api_server(job: Reporting) -> None:
    spoilt = with_end(job.worker().token, int(time.time()) + 1_000_000)
    refused(job.post(job.server.client(spoilt)), 401, "does not accept")


def with_end(token: str, end: int) -> str:
    """The token with another end, which its signature does not fit."""
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) | {"exp": end}
    spoilt = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"{head}.{spoilt}.{signature}"


def reviews(place: ServerPlace) -> float:
    return place.server.metric("quantfleet_server_api_calls_total", kind="review")


def test_t08_the_token_of_a_deleted_pod_is_refused_soon(job: Reporting) -> None:
    name = f"{job.name}-pod"
    container = {"name": "worker", "image": "none.invalid/worker"}
    pod = {
        "metadata": {"name": name},
        # no scheduler takes it, so no kubelet must let it go
        "spec": {
            "containers": [container],
            "serviceAccountName": job.account,
            "schedulerName": "none",
            "terminationGracePeriodSeconds": 0,
        },
    }
    made = job.cluster.create("pods", pod, namespace=job.namespace)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": made["metadata"]["uid"]}
    worker = with_token(job, job.audience(), bound=bound)
    assert job.post(worker).status == 200

    job.cluster.delete("pods", name, namespace=job.namespace)

    # 10 s of the API server, 1 s of this server, six times
    wait_for("token refused", lambda: job.post(worker).status == 401, seconds=66, every=0.6)


def test_t08_a_body_of_65_kib_is_refused(job: Reporting) -> None:
    body = json.dumps(job.report()).encode().ljust(65 * 1024)
    refused(job.worker().call("POST", f"{job.path}/progress", body), 413, str(MOST_BODY_BYTES))
    body = json.dumps(job.report()).encode().ljust(64 * 1024)
    assert job.worker().call("POST", f"{job.path}/progress", body).status == 200


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        ('"etaSeconds": NaN', "etaSeconds"),
        ('"etaSeconds": Infinity', "etaSeconds"),
        ('"etaSeconds": 1e999', "etaSeconds"),
        ('"etaSeconds": -1', "etaSeconds"),
        ('"percent": 101', "percent"),
        ('"time": "2026-01-01T00:00:00Z"', "time"),
        ('"layer": 1', "JSON"),
    ],
)
def test_t08_numbers_that_are_none_and_unknown_fields_are_refused(
    job: Reporting, spoilt: str, told: str
) -> None:
    text = json.dumps(job.report()).replace('"rank": 0', f'"rank": 0, {spoilt}')
    if told == "JSON":
        text = text[:-1]
    answer = job.worker().call("POST", f"{job.path}/progress", text.encode())
    refused(answer, 422, told)


def test_t08_the_attempt_before_is_refused(job: Reporting) -> None:
    first = job.worker(1)
    assert job.post(first).status == 200
    job.begin(2)
    wait_for("attempt 1 refused", lambda: job.post(first).status == 409)
    refused(job.post(first), 409, "attempt 1 is over")
    refused(job.post(job.worker(2)), 403, "for attempt 2")
    assert job.post(job.worker(2), attempt=2).status == 200


def test_an_attempt_that_the_watch_has_not_brought_yet_is_to_come_again(job: Reporting) -> None:
    answer = job.post(job.worker(7), attempt=7)
    refused(answer, 503, "not known yet")
    assert answer.headers["Retry-After"] == "1"


def test_t08_a_regression_is_taken_for_nothing(job: Reporting) -> None:
    worker = job.worker()
    assert job.post(worker, rank(layer=5, numLayers=9), sequence=10).body["stale"] is False
    assert job.post(worker, rank(layer=4, numLayers=9), sequence=10).body["stale"] is True
    assert job.post(worker, rank(layer=4, numLayers=9), sequence=9).body["stale"] is True
    assert job.post(worker, rank(layer=3, numLayers=9), sequence=11).body["stale"] is False
    wait_for("progress", lambda: job.progress().get("layersCompleted") == 5)


def test_t08_whoever_reports_too_often_is_told_when_to_come_again(job: Reporting) -> None:
    worker = job.worker()
    answers = [job.post(worker) for _ in range(60)]
    late = next(answer for answer in answers if answer.status == 429)
    refused(late, 429, "too many reports")
    assert late.headers["Retry-After"] == "1"
    assert late.body["details"] == {"retryAfterSeconds": 1}
    assert [answer.status for answer in answers[:20]] == [200] * 20


def test_t08_the_clock_of_a_client_counts_for_nothing(job: Reporting) -> None:
    """There is no time in a report; what the status says is the server's own."""
    before = time.time()
    job.post(job.worker())
    progress = wait_for("progress", job.progress)
    heard = datetime.fromisoformat(progress["lastUpdateTime"]).timestamp()
    assert before - 1 <= heard <= time.time() + 1


def test_t06_a_late_report_of_a_job_that_has_ended_is_refused(job: Reporting) -> None:
    worker = job.worker()
    job.post(worker, rank(layer=2, numLayers=9))
    wait_for("progress", job.progress)
    job.complete()
    ended = job.read()["status"]
    wait_for("the end seen", lambda: job.post(worker).status == 409)
    refused(job.post(worker, rank(layer=9, numLayers=9), final=True), 409, "has ended")
    assert job.read()["status"] == ended


def test_t08_a_job_that_is_gone_takes_no_reports(job: Reporting) -> None:
    worker = job.worker()
    job.post(worker)
    job.delete()
    wait_for("the end seen", lambda: job.post(worker).status == 404)


def test_layers_are_asked_for_again_by_their_number(
    server_place: ServerPlace, job: Reporting
) -> None:
    worker = job.worker()
    layers = [
        {"layer": n, "seconds": 1.5, "relativeError": 0.01, "repeated": n == 0} for n in (0, 1)
    ]
    assert job.post(worker, layers=layers).body["knownLayers"] == 2
    found = server_place.reader().get(f"{job.path}/layers").body
    assert [layer["report"] for layer in found["layers"]] == layers
    assert found["attempt"] == 1

"""Reports on a real API server with real tokens: what is taken, and what is refused (T08)."""

import pytest

from child_process import wait_for
from reporting_jobs import ServerPlace, rank
from server_process import Answer

pytestmark = pytest.mark.controlplane


def refused(answer: Answer, status: int, told: str) -> None:
    """The answer is a metav1.Status of this code whose message holds these words."""
    assert answer.status == status, answer.body
    assert answer.body["kind"] == "Status"
    assert answer.body["apiVersion"] == "v1"
    assert answer.body["status"] == "Failure"
    assert answer.body["code"] == status
    assert told in answer.body["message"]


def test_t08_a_report_reaches_readers_and_the_status(server_place: ServerPlace) -> None:
    job = server_place.submit()
    report = rank(of=1, layer=3, numLayers=10, microBatch=4, numMicroBatches=8)

    answer = job.post(job.worker(), report)

    assert answer.status == 200, answer.body
    assert answer.body == {"stale": False, "knownLayers": 0, "minIntervalSeconds": 1.0}
    shown = server_place.reader().get(job.path).body["status"]["progress"]
    assert (shown["layersCompleted"], shown["totalLayers"]) == (3, 10)
    written = wait_for("progress in the status", job.progress)
    assert written == shown

"""Jobs that can never work are Failed in time, say why in one sentence, and hold nothing."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from child_process import wait_for
from cluster_access import Json
from quantization_jobs import Quantization
from real_jobs import Ground, example

pytestmark = [pytest.mark.cluster, pytest.mark.demo]
DEADLINE_SECONDS = 20
WORKER_SECONDS = 60
"""For pods that start, read their manifest and end: more than a slow start takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """What is wrong with a job, and what its condition must say."""

    edits: Mapping[str, object]
    reason: str
    words: tuple[str, ...]


CASES = {
    "image": Hopeless(
        edits={"spec.workers.image": "none.invalid/no-such-image:1"},
        reason="WorkersNotReady",
        words=("none.invalid/no-such-image:1",),
    ),
    "claim": Hopeless(
        edits={"spec.calibration.source.pvc.claimName": "no-such-claim"},
        reason="WorkersNotReady",
        words=("no-such-claim",),
    ),
    "model": Hopeless(
        edits={"spec.model.source.pvc.path": "no-such-model"},
        reason="InvalidInput",
        words=("no-such-model",),
    ),
    "texts": Hopeless(
        edits={"spec.calibration.textField": "messages"},
        reason="InvalidInput",
        words=("messages",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_job_that_can_never_work_fails_in_time(
    shared_ground: Ground, case: Hopeless, request: pytest.FixtureRequest
) -> None:
    name = f"never-{request.node.callspec.id}"
    policy = {"spec.runPolicy.preRunningDeadlineSeconds": DEADLINE_SECONDS}
    begin = time.monotonic()
    job = shared_ground.submit(example(name, {**case.edits, **policy}))
    failed = job.wait_condition("Failed", seconds=6 * (DEADLINE_SECONDS + WORKER_SECONDS))
    assert time.monotonic() - begin < DEADLINE_SECONDS + WORKER_SECONDS
    assert failed["reason"] == case.reason, failed
    for word in case.words:
        assert word in failed["message"]
    assert "\n" not in failed["message"]
    wait_for("nothing held", lambda: not holding(job), seconds=120)
    assert not shared_ground.output(job).exists()
    assert job.status().get("restarts", {}).get("application", 0) == 0


def holding(job: Quantization) -> list[Json]:
    """Pods that still take a place on a node."""
    return [pod for pod in job.pods() if pod["status"].get("phase") in ("Pending", "Running")]

"""A finished job never runs again, and no writer can undo its end (T06, T05, C11, C12)."""

import pytest

import pod_states
from child_process import wait_for
from cluster_access import APPLY, Json, Refused, path_of
from quantization_jobs import PUBLISHED, Quantization, publishes
from workplaces import Workplace

pytestmark = pytest.mark.controlplane


@pytest.fixture
def finished(workplace: Workplace) -> Quantization:
    job = workplace.submit("done", behaviour=publishes)
    job.wait_condition("Complete")
    return job


def settle(workplace: Workplace, job: Quantization) -> None:
    """Until the operator has surely looked at the job: a later one has been carried through."""
    other = workplace.submit("later", behaviour=publishes)
    other.wait_condition("Complete")


def test_t06_deleting_the_job_of_a_success_starts_nothing(
    workplace: Workplace, finished: Quantization
) -> None:
    name = finished.status()["jobRef"]["name"]
    before = finished.status()
    options = {"propagationPolicy": "Background"}
    workplace.cluster.delete("jobs", name, namespace=finished.namespace, options=options)
    wait_for("Job gone", lambda: not finished.jobs())
    settle(workplace, finished)
    assert finished.jobs() == []
    assert finished.status() == before


def test_t06_editing_what_may_be_edited_starts_nothing(
    workplace: Workplace, finished: Quantization
) -> None:
    finished.change(suspend=True)
    generation = finished.read()["metadata"]["generation"]
    wait_for("generation seen", lambda: finished.status()["observedGeneration"] == generation)
    finished.change(suspend=False, activeDeadlineSeconds=1)
    settle(workplace, finished)
    status = finished.status()
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1)
    assert finished.condition("Suspended")["status"] == "False"


def write_status(job: Quantization, status: Json, manager: str) -> None:
    """What any writer may try: apply a status, by force."""
    path = path_of("quantizationjobs", job.name, namespace=job.namespace, sub="status")
    body = {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": job.name},
        "status": status,
    }
    query = {"fieldManager": manager, "force": "true"}
    job.cluster.access.call("PATCH", path, body, query=query, content=APPLY)


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Calibrating"},
        {"attempt": 2},
        {
            "progress": {
                "attempt": 1,
                "stage": "Calibrating",
                "lastUpdateTime": "2026-01-01T00:00:00Z",
            }
        },
        {"restarts": {"application": 1, "disruption": 0}},
    ],
    ids=["phase", "attempt", "progress", "restarts"],
)
def test_c11_the_api_server_refuses_to_change_a_final_status(
    finished: Quantization, status: Json
) -> None:
    before = finished.status()
    with pytest.raises(Refused) as refused:
        write_status(finished, status, "anybody")
    assert refused.value.status == 422
    assert finished.status() == before


def test_c11_nobody_makes_an_attempt_smaller(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("monotonic")
    pod_states.finish(workplace.cluster, pods[0], 1)
    wait_for("attempt 2", lambda: job.status()["attempt"] == 2)
    with pytest.raises(Refused) as refused:
        write_status(job, {"attempt": 1}, "anybody")
    assert refused.value.status == 422


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output", {"pvc": {"claimName": "out", "path": "elsewhere"}, "formats": ["Ascend"]}),
        ("workers", {"count": 5}),
        ("calibration", None),
        ("evaluation", {"windowCount": 1, "windowLength": 8}),
    ],
)
def test_c12_what_was_asked_for_cannot_be_changed(
    workplace: Workplace, field: str, value: Json | None
) -> None:
    policy = {"suspend": True}
    job = workplace.submit("fixed", policy=policy)
    if value is not None and field == "evaluation":
        value = {**value, "source": {"pvc": {"claimName": "data", "path": "eval.jsonl"}}}
    with pytest.raises(Refused) as refused:
        workplace.cluster.patch(
            "quantizationjobs", job.name, {"spec": {field: value}}, namespace=job.namespace
        )
    assert refused.value.status == 422


def test_t05_what_ended_while_the_operator_was_down_is_told_when_it_is_back(
    own_workplace: Workplace,
) -> None:
    """The time to live counts from the end of the Job, not from when it was noticed."""
    job, pods = own_workplace.submit_running("down", policy={"ttlSecondsAfterFinished": 3})
    own_workplace.operator.kill()
    pod_states.finish(own_workplace.cluster, pods[0], 0, message=PUBLISHED)
    child = wait_for(
        "Job complete", lambda: (job.job(1) or {}).get("status", {}).get("completionTime")
    )
    wait_for("its time to live is over", lambda: pod_states.ago(4) > child, every=0.2)
    own_workplace.operator.start()
    job.wait_condition("Complete", seconds=20)
    assert job.status()["completionTime"] == child
    wait_for("children gone", lambda: not job.children(), seconds=20)

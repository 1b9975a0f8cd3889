"""Jobs, Jobs of attempts and pods as reconcile sees them, with everything at its usual value."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from quantfleet_api.names import job_name
from quantfleet_api.status import Condition, ConditionType, JobStatus
from quantfleet_operator.conditions import condition_of
from quantfleet_operator.decision import Decision
from quantfleet_operator.observed import ChildJob, Exit, Happened, JobView, Observed, Pod
from quantfleet_operator.reconcile import reconcile
from quantfleet_operator.settings import Settings

NAME, NAMESPACE = "tiny", "work"
UID = "0123abcd-0000-4000-8000-000000000000"
START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings(worker_image="registry.invalid/worker:1", restart_delay_seconds=5)
DIGEST = "sha256:" + "a" * 64


def at(seconds: float) -> datetime:
    """A moment after the start."""
    return START + timedelta(seconds=seconds)


def spec(*, workers: int = 2, policy: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A spec that asks for little."""
    return {
        "model": {"source": {"pvc": {"claimName": "models", "path": "tiny"}}},
        "calibration": {
            "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
            "sampleCount": 8,
            "sequenceLength": 64,
        },
        "recipe": {"scheme": "W8A8", "weights": {"method": "RTN"}},
        "workers": {"count": workers},
        "output": {"pvc": {"claimName": "out", "path": "tiny"}, "formats": ["Ascend"]},
        "runPolicy": dict(policy or {}),
    }


def view(
    status: JobStatus | None = None,
    *,
    workers: int = 2,
    policy: Mapping[str, Any] | None = None,
    **more: Any,
) -> JobView:
    """A QuantizationJob."""
    usual: dict[str, Any] = {
        "namespace": NAMESPACE,
        "name": NAME,
        "uid": UID,
        "generation": 1,
        "resource_version": "1",
        "deleting": False,
        "spec": spec(workers=workers, policy=policy),
        "status": status or JobStatus(),
        "has_status": status is not None,
    }
    return JobView(**(usual | more))


def happened(reason: str, seconds: float, message: str = "") -> Happened:
    return Happened(reason=reason, message=message, time=at(seconds))


def child(attempt: int = 1, **more: Any) -> ChildJob:
    """The Job of an attempt, all of whose pods are still to come."""
    usual: dict[str, Any] = {
        "name": job_name(NAME, UID, attempt),
        "uid": f"job-{attempt}",
        "attempt": attempt,
        "resource_version": "1",
        "deleting": False,
        "suspended": False,
        "suspended_by_us": False,
        "active": 2,
        "ready": 0,
        "succeeded": 0,
        "failed": 0,
        "conditions": {},
        "completion_time": None,
    }
    return ChildJob(**(usual | more))


def failed_child(attempt: int = 1, seconds: float = 100, **more: Any) -> ChildJob:
    """A Job whose first pod failed: FailureTarget, not yet Failed."""
    conditions = {"FailureTarget": happened("PodFailurePolicy", seconds)}
    return child(attempt, conditions=conditions, active=1, failed=1, **more)


def pod(index: int = 0, attempt: int = 1, **more: Any) -> Pod:
    """A pod that runs and is ready."""
    usual: dict[str, Any] = {
        "name": f"{job_name(NAME, UID, attempt)}-{index}-xyz",
        "uid": f"pod-{attempt}-{index}",
        "job_uid": UID,
        "attempt": attempt,
        "index": index,
        "node": f"node-{index}",
        "phase": "Running",
        "resource_version": "1",
        "deletion_time": None,
        "grace_seconds": 0,
        "asked": None,
        "ready": True,
        "disruption": None,
        "exit": None,
        "pod_reason": "",
        "pod_message": "",
        "hold": None,
    }
    return Pod(**(usual | more))


def exited(
    code: int,
    seconds: float,
    *,
    index: int = 0,
    attempt: int = 1,
    reason: str = "Error",
    message: str = "",
    **more: Any,
) -> Pod:
    """A pod whose worker ended."""
    end = Exit(code=code, reason=reason, message=message, time=at(seconds))
    phase = "Succeeded" if code == 0 else "Failed"
    return pod(index, attempt, phase=phase, ready=False, exit=end, **more)


def deleted(one: Pod, asked: float, *, grace: int = 30) -> Pod:
    """A pod whose deletion was asked for."""
    return replace(one, deletion_time=at(asked + grace), grace_seconds=grace, asked=at(asked))


def decide(
    job: JobView,
    observed: Observed | None = None,
    seconds: float = 0,
    settings: Settings = SETTINGS,
) -> Decision:
    """What reconcile decides at a moment."""
    return reconcile(job, observed or Observed(), at(seconds), settings)


def settle(
    job: JobView, observed: Observed, seconds: float, settings: Settings = SETTINGS
) -> tuple[JobView, Decision]:
    """Decides and writes until nothing more is to be said; the job, and the last decision."""
    for _ in range(5):
        decision = decide(job, observed, seconds, settings)
        if decision.status is None:
            return job, decision
        job = replace(job, status=decision.status, has_status=True)
    raise AssertionError(f"never at rest: {job.status}")


def running(*, seconds: float = 10, **more: Any) -> JobView:
    """A job whose first attempt runs with all workers ready."""
    job, _ = settle(view(**more), Observed(), 0)
    return settle(job, gang(), seconds)[0]


def gang(*pods: Pod, job: ChildJob | None = None, **more: Any) -> Observed:
    """An attempt that runs, unless told otherwise."""
    jobs = (job or child(ready=2),)
    return Observed(jobs=jobs, pods=pods or (pod(0), pod(1)), service_exists=True, **more)


def condition(status: JobStatus | None, kind: ConditionType) -> Condition:
    """The condition of a type; it must be there."""
    assert status is not None
    found = condition_of(status, kind)
    assert found is not None
    return found


def truth(status: JobStatus | None, kind: ConditionType) -> tuple[str, str]:
    """Status and reason of a condition."""
    found = condition(status, kind)
    return found.status, found.reason

"""Suspension (rule C9): never a failure, and it stops all clocks.

The job's `runPolicy.suspend` sets the Job's. A Job that somebody else suspended is left to them: it
is reported, its clocks stand still, and nobody fights over it. The Job is resumed only when all of
its old pods are gone, so that a pod that is deleted later was deleted for another reason; where one
cannot go, because its node is lost, the job goes on as a new attempt that counts for nothing.
"""

from quantfleet_api.status import ConditionType, JobStatus
from quantfleet_operator.attempts import next_attempt, remembered
from quantfleet_operator.case import Case, child_of, pods_of
from quantfleet_operator.conditions import Truth, holds, reason_of, with_condition
from quantfleet_operator.deadlines import start_clocks, stop_clocks
from quantfleet_operator.decision import Action, Event, SuspendJob
from quantfleet_operator.evidence import past_grace
from quantfleet_operator.observed import ChildJob, Pod

BY_USER, RESUMING, BY_OTHERS = "SuspendedByUser", "Resuming", "SuspendedByOthers"


def is_paused(case: Case, status: JobStatus) -> bool:
    """Whether pods may be deleted because of a suspension."""
    child = child_of(case.observed, status.attempt)
    suspended = child is not None and child.suspended
    return case.policy.suspend or suspended or holds(status, ConditionType.SUSPENDED)


def suspend(case: Case, status: JobStatus) -> tuple[JobStatus, tuple[Event, ...]]:
    """The status with what is to be said about suspension, and its clocks as they should be."""
    before = holds(status, ConditionType.SUSPENDED)
    reason = _reason(case, status)
    if reason == RESUMING and _stuck(case, status):
        status = next_attempt(case, status, 0)  # rule C2's fence keeps the lost pod out
    if reason:
        message = "all workers are stopped, all deadlines stand still"
        status = _set(case, stop_clocks(status, case.now), "True", reason, message)
        event = Event(reason="Suspended", message=f"{reason}: {message}", action="Suspend")
        return status, () if before else (event,)
    if before:
        if remembered(status) is not None:
            status = status.model_copy(update={"last_failure": None})
        status = _set(case, status, "False", "Resumed", "")
        status = start_clocks(status, waiting_from=case.now, now=case.now)
        message = f"attempt {status.attempt} goes on" if status.attempt else "the job begins"
        return status, (Event(reason="Resumed", message=message, action="Resume"),)
    reason = reason_of(status, ConditionType.SUSPENDED) or "NotSuspended"
    return _set(case, status, "False", reason, ""), ()


def suspension_actions(case: Case, status: JobStatus) -> tuple[Action, ...]:
    """What makes the Job as suspended as it should be."""
    child = child_of(case.observed, status.attempt)
    if child is None or _over(child):
        return ()
    reason = reason_of(status, ConditionType.SUSPENDED)
    if reason == BY_USER and not child.suspended:
        return (SuspendJob(name=child.name, uid=child.uid, suspend=True),)
    if reason == RESUMING and not _leaving(case, status):
        return (SuspendJob(name=child.name, uid=child.uid, suspend=False),)
    return ()


def _reason(case: Case, status: JobStatus) -> str:
    """Why the job is suspended, or "" where it is not."""
    if case.policy.suspend:
        return BY_USER
    child = child_of(case.observed, status.attempt)
    if child is None or not child.suspended:
        return ""
    return RESUMING if child.suspended_by_us else BY_OTHERS


def _leaving(case: Case, status: JobStatus) -> tuple[Pod, ...]:
    """Pods from before the suspension that are not gone yet."""
    pods = pods_of(case.observed, status.attempt)
    return tuple(pod for pod in pods if not pod.terminal or pod.deletion_time is not None)


def _stuck(case: Case, status: JobStatus) -> bool:
    return any(past_grace(pod, case.now) for pod in _leaving(case, status))


def _over(child: ChildJob) -> bool:
    return child.deleting or child.failure is not None or child.success is not None


def _set(case: Case, status: JobStatus, truth: Truth, reason: str, message: str) -> JobStatus:
    return with_condition(status, ConditionType.SUSPENDED, truth, reason, message, now=case.now)

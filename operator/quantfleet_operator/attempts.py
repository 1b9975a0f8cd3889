"""Attempts: how one begins, how its end is told, and what follows it (rules C1, C3, C4, C6)."""

from datetime import datetime, timedelta

from quantfleet_api.names import MOST_ATTEMPTS
from quantfleet_api.status import Cause, ConditionType, Failure, JobStatus, WorkerCounts
from quantfleet_operator.case import Case, child_of, counted, pods_of
from quantfleet_operator.conditions import holds, with_condition
from quantfleet_operator.deadlines import seconds_since, start_clocks
from quantfleet_operator.decision import Decision, Event, Manifest
from quantfleet_operator.evidence import evidence, past_grace, told, told_by_job, worst
from quantfleet_operator.manifests.job import attempt_job
from quantfleet_operator.observed import ChildJob, format_time
from quantfleet_operator.outcomes import fail

LONGEST_DELAY_SECONDS = 300
STEADY_SECONDS = 600
"""An attempt that lived this long is followed by the next without delay."""


def begin(case: Case, status: JobStatus) -> JobStatus:
    """The first attempt: intent only, its Job comes after this is written."""
    now = format_time(case.now)
    update = {
        "attempt": 1,
        "start_time": now,
        "attempt_start_time": now,
        "worker_image": case.job.image,
    }
    status = _cleared(case, status.model_copy(update=update))
    return start_clocks(status, waiting_from=case.now, now=case.now)


def remember(case: Case, status: JobStatus, *, paused: bool) -> JobStatus:
    """The status with the worst that is known of the present attempt (rule C3)."""
    child = child_of(case.observed, status.attempt)
    seen = evidence(case.observed.pods, child, attempt=status.attempt, paused=paused, now=case.now)
    known = remembered(status)
    found = worst([seen, known])
    return status if found is None else status.model_copy(update={"last_failure": found})


def remembered(status: JobStatus) -> Failure | None:
    """What is known of the present attempt; `lastFailure` may still speak of an earlier one."""
    last = status.last_failure
    return last if last is not None and last.attempt == status.attempt else None


def ending(case: Case, status: JobStatus, *, paused: bool) -> Failure | None:
    """What ended the present attempt, or None while it goes on."""
    child = child_of(case.observed, status.attempt)
    known = remembered(status)
    if child is None or child.deleting:
        # A Job that was seen and is gone was deleted: its name is never used again (rule C6).
        return worst([known, _job_deleted(case, status)]) if status.job_ref else None
    if child.failure is not None:
        return known or _unexplained(status, child)
    lost = any(past_grace(pod, case.now) for pod in pods_of(case.observed, status.attempt))
    return known if lost and not paused else None


def _job_deleted(case: Case, status: JobStatus) -> Failure:
    return Failure(
        attempt=status.attempt,
        cause=Cause.DISRUPTION,
        reason="JobDeleted",
        message="the attempt's Job was deleted",
        finished_time=format_time(case.now),
    )


def _unexplained(status: JobStatus, child: ChildJob) -> Failure:
    assert child.failure is not None, "called for a failed Job"
    cause, reason = told_by_job(child.failure)
    return Failure(
        attempt=status.attempt,
        cause=cause,
        reason=reason,
        message=child.failure.message[:1024],
        finished_time=format_time(child.failure.time),
    )


def follow(case: Case, status: JobStatus, failure: Failure) -> Decision:
    """After an attempt: a new one, or the end of the job."""
    status = status.model_copy(update={"last_failure": failure})
    why = told(failure)
    if failure.cause is Cause.PERMANENT:
        return _give_up(case, status, failure.reason, why)
    disrupted = failure.cause is Cause.DISRUPTION
    limit = case.policy.backoff_limit
    if not disrupted and status.restarts.application >= limit:
        text = f"{status.restarts.application + 1} failures exceed backoffLimit {limit}: {why}"
        return _give_up(case, status, "BackoffLimitExceeded", text)
    if status.attempt >= MOST_ATTEMPTS:
        return _give_up(case, status, "AttemptsExhausted", f"{MOST_ATTEMPTS} attempts: {why}")
    delay = _delay(case, status, failure)
    status = _counted(status, disrupted)
    status = next_attempt(case, status, delay)
    when = f" after {delay} s" if delay else ""
    message = f"attempt {status.attempt} follows{when}: {why}"
    event = Event(reason="GangRestarting", message=message, type="Warning", action="Restart")
    return Decision(status=status, events=(event,), restarted=failure.cause)


def next_attempt(case: Case, status: JobStatus, delay: int) -> JobStatus:
    """The intent of a further attempt, whose pods come after `delay` seconds at the earliest."""
    start = case.now + timedelta(seconds=delay)
    update = {
        "attempt": status.attempt + 1,
        "job_ref": None,
        "attempt_start_time": format_time(case.now),
        "not_before": format_time(start) if delay else None,
    }
    status = _cleared(case, status.model_copy(update=update))
    if holds(status, ConditionType.SUSPENDED):
        return status
    return start_clocks(status, waiting_from=start, now=case.now)


def _cleared(case: Case, status: JobStatus) -> JobStatus:
    status = status.model_copy(update={"workers": WorkerCounts(desired=case.job.count)})
    reason = "GangRestarting" if status.attempt > 1 else "WaitingForWorkers"
    message = f"attempt {status.attempt} begins"
    for kind in (ConditionType.WORKERS_READY, ConditionType.PROGRESSING):
        status = with_condition(status, kind, "False", reason, message, now=case.now)
    return status


def _counted(status: JobStatus, disrupted: bool) -> JobStatus:
    kind = "disruption" if disrupted else "application"
    count = getattr(status.restarts, kind) + 1
    return status.model_copy(update={"restarts": status.restarts.model_copy(update={kind: count})})


def _delay(case: Case, status: JobStatus, failure: Failure) -> int:
    """Seconds to wait: none the first time or after a steady attempt, then 1, 2, 4 ... delays."""
    lived = seconds_since(status.attempt_start_time, case.now)
    restarts = status.restarts
    before = restarts.disruption if failure.cause is Cause.DISRUPTION else restarts.application
    if before == 0 or lived >= STEADY_SECONDS:
        return 0
    doubled = case.settings.restart_delay_seconds << min(before - 1, 16)
    return min(doubled, LONGEST_DELAY_SECONDS)


def _give_up(case: Case, status: JobStatus, reason: str, message: str) -> Decision:
    at = _failed_at(case, status)
    status = counted(status, child_of(case.observed, status.attempt), case.observed)
    status = fail(status, reason, message, at=at, now=case.now)
    event = Event(reason="Failed", message=f"{reason}: {message}", type="Warning", action="Fail")
    return Decision(status=status, events=(event,))


def _failed_at(case: Case, status: JobStatus) -> datetime:
    """When the Job failed, which may be long ago if the operator was down."""
    child = child_of(case.observed, status.attempt)
    return case.now if child is None or child.failure is None else child.failure.time


def probe_for(case: Case, status: JobStatus) -> Manifest:
    """The Job to ask the API server about before something is counted or begun (rule C7)."""
    attempt = status.attempt
    if child_of(case.observed, attempt) is not None or status.job_ref is not None:
        attempt = min(attempt + 1, MOST_ATTEMPTS)
    return attempt_job(case.job, attempt, case.settings)

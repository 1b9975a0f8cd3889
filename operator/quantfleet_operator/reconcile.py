"""From a job, what is observed of its children and the time: what to do next and what to say.

Pure and level-triggered: it looks at what is, never at what changed, so it may be called at any
time, any number of times, and by two operators at once. Called by the controller alone.
"""

from datetime import datetime

from quantfleet_api.errors import InvalidInput
from quantfleet_api.status import Cause, ConditionType, Failure, JobStatus
from quantfleet_operator.admission import admit
from quantfleet_operator.attempts import begin, ending, follow, probe_for, remember, remembered
from quantfleet_operator.case import Case, child_of, ours
from quantfleet_operator.conditions import (
    condition_of,
    holds,
    is_terminal,
    phase_of,
    with_all_conditions,
    with_condition,
)
from quantfleet_operator.deadlines import active_time_left, waiting_time_left
from quantfleet_operator.decision import Decision, Event
from quantfleet_operator.evidence import told
from quantfleet_operator.gang import deeds, watch_gang
from quantfleet_operator.observed import JobView, Observed
from quantfleet_operator.outcomes import complete, fail, finished, published_at, refuse
from quantfleet_operator.settings import Settings
from quantfleet_operator.suspension import is_paused, suspend
from quantfleet_operator.wakeups import next_look

STALE_SECONDS = 1.0
"""How soon to look again at a job whose present state is under way to us."""


def reconcile(job: JobView, observed: Observed, now: datetime, settings: Settings) -> Decision:
    """The next step of a job's life.

    1. Nothing, if job or namespace are being deleted (C7), or if the job that is seen is older
       than its children, as behind a slow watch beside another operator; housekeeping, if it is
       finished.
    2. Refused for good, if it can never work.
    3. Complete, if rank 0 published (C4), whatever else is seen.
    4. Evidence of failure is remembered (C3); deadlines are kept.
    5. An attempt that ended is followed by another, or by the end (C6).
    6. Suspension, the first attempt, the state of the gang, and deeds that follow from it.
    """
    if job.deleting or observed.namespace_ending:
        return Decision()
    if is_terminal(job.status):
        return finished(job, observed, now)
    if any(child.attempt > job.status.attempt for child in observed.jobs):
        return Decision(requeue_after=STALE_SECONDS)
    try:
        admitted = admit(job, settings)
    except InvalidInput as error:
        return refuse(job, str(error), now)
    if observed.rejection:
        return refuse(job, f"the API server refuses its Job: {observed.rejection}", now)
    case = Case(view=job, job=admitted, observed=observed, now=now, settings=settings)
    return _settled(case, _decide(case, _accepted(case)))


def _accepted(case: Case) -> JobStatus:
    status = case.view.status.model_copy(update={"observed_generation": case.view.generation})
    kind = ConditionType.ACCEPTED
    status = with_condition(status, kind, "True", "Valid", "the job can be run", now=case.now)
    for kind in (ConditionType.COMPLETE, ConditionType.FAILED):
        status = with_condition(status, kind, "False", "NotFinished", now=case.now)
    kind, reason = ConditionType.OUTPUT_VERIFIED, "NotPublished"
    return with_condition(status, kind, "Unknown", reason, now=case.now)


def _decide(case: Case, status: JobStatus) -> Decision:
    published = published_at(case.observed, status.attempt)
    if published is not None:
        return complete(case, status, published)
    paused = is_paused(case, status)
    status = remember(case, status, paused=paused)
    expired = _expired(case, status)
    if expired is not None:
        return expired
    failure = ending(case, status, paused=paused)
    if failure is not None:
        decision = follow(case, status, failure)
        if decision.status is None or is_terminal(decision.status):
            return decision
        status, events = suspend(case, decision.status)
        return Decision(
            status=status,
            events=(*decision.events, *events),
            restarted=decision.restarted,
            actions=deeds(case, status),
        )
    status, events = suspend(case, status)
    if status.attempt == 0 and not holds(status, ConditionType.SUSPENDED):
        status = begin(case, status)
    status, more = watch_gang(case, status)
    events = (*_disruption(case.view.status, status), *events, *more)
    return Decision(status=status, events=events, actions=deeds(case, status))


def _expired(case: Case, status: JobStatus) -> Decision | None:
    """The end of a job whose time is over; a job that is to be suspended has time again."""
    if case.policy.suspend:
        return None
    left = active_time_left(status, case.policy, case.now)
    if left is not None and left <= 0:
        limit = case.policy.active_deadline_seconds
        message = f"the job was active for activeDeadlineSeconds ({limit}), suspensions apart"
        return _over(case, status, "DeadlineExceeded", message)
    left = waiting_time_left(status, case.policy, case.now)
    child = child_of(case.observed, status.attempt)
    ready = child is not None and child.ready + child.succeeded >= case.job.count
    if left is not None and left <= 0 and not ready:
        limit = case.policy.pre_running_deadline_seconds
        why = condition_of(watch_gang(case, status)[0], ConditionType.WORKERS_READY)
        because = f": {why.reason}: {why.message}" if why else ""
        message = f"not all workers were ready within preRunningDeadlineSeconds ({limit}){because}"
        return _over(case, status, "WorkersNotReady", message)
    return None


def _over(case: Case, status: JobStatus, reason: str, message: str) -> Decision:
    status = fail(status, reason, message, at=case.now, now=case.now)
    event = Event(reason="Failed", message=f"{reason}: {message}", type="Warning", action="Fail")
    return Decision(status=status, events=(event,))


def _disruption(before: JobStatus, after: JobStatus) -> tuple[Event, ...]:
    """Said as soon as it is seen: the attempt may take minutes to end."""
    new: Failure | None = remembered(after)
    if new is None or new.cause is not Cause.DISRUPTION or before.last_failure == new:
        return ()
    known = before.last_failure
    if known is not None and known.attempt == new.attempt and known.pod_name == new.pod_name:
        return ()
    return (Event(reason="DisruptionDetected", message=told(new), type="Warning", action="Watch"),)


def _settled(case: Case, decision: Decision) -> Decision:
    """The decision with its status complete, and left out where it says nothing new."""
    if decision.status is None:
        return decision
    status = with_all_conditions(decision.status, now=case.now)
    status = status.model_copy(update={"phase": phase_of(status)})
    before = case.view.status
    changed = not case.view.has_status or not ours(before, status)
    counts = status.attempt != before.attempt or status.last_failure != before.last_failure
    final = is_terminal(status)
    return Decision(
        status=status if changed else None,
        probe=probe_for(case, before)
        if changed and counts and not holds_complete(status)
        else None,
        actions=decision.actions,
        events=decision.events if changed else (),
        requeue_after=0 if final else next_look(case, status),
        restarted=decision.restarted,
    )


def holds_complete(status: JobStatus) -> bool:
    """Whether the job is complete: what was published counts, whatever becomes of the namespace."""
    return holds(status, ConditionType.COMPLETE)

"""The present attempt while it goes on: its counts, whether its workers are ready, its deeds."""

from datetime import UTC, datetime, timedelta

from quantfleet_api.names import child_name
from quantfleet_api.status import ConditionType, JobReference, JobStatus
from quantfleet_operator.case import Case, child_of, counted, old_pods, pods_of
from quantfleet_operator.conditions import Truth, holds, reason_of, with_condition
from quantfleet_operator.decision import Action, CreateJob, Ensure, Event
from quantfleet_operator.holds import children_missing, hold_of
from quantfleet_operator.manifests.config_map import config_map
from quantfleet_operator.manifests.job import attempt_job
from quantfleet_operator.manifests.network_policy import network_policy
from quantfleet_operator.manifests.service import service
from quantfleet_operator.manifests.service_account import service_account
from quantfleet_operator.observed import ChildJob, Hold, Pod, parse_time
from quantfleet_operator.outcomes import delete_job
from quantfleet_operator.suspension import suspension_actions

STALL = timedelta(minutes=10)
"""Reports come every few seconds; a gang that is silent for this long is said to be."""


def watch_gang(case: Case, status: JobStatus) -> tuple[JobStatus, tuple[Event, ...]]:
    """The status with counts, WorkersReady and Progressing; the events of what changed."""
    child = child_of(case.observed, status.attempt)
    status, events = _refer(counted(status, child, case.observed), child)
    if holds(status, ConditionType.SUSPENDED):
        return _suspended(case, status), events
    pods = pods_of(case.observed, status.attempt)
    ready = child is not None and child.ready + child.succeeded >= case.job.count
    before = holds(status, ConditionType.WORKERS_READY)
    if ready:
        update = {"waiting_since": None, "not_before": None}
        status = status.model_copy(update=update)
        text = f"all {case.job.count} workers are ready"
        status = _set(case, status, ConditionType.WORKERS_READY, "True", "AllReady", text)
        status = _progressing(case, status)
        event = Event(reason="WorkersReady", message=text, action="Start")
        return status, events if before else (*events, event)
    if status.waiting_since is None:  # they were ready once: a loss, of which evidence will tell
        text = "a worker that was ready no longer is"
        return _set(case, status, ConditionType.WORKERS_READY, "False", "WorkersLost", text), events
    hold = _waiting_hold(case, status, child, pods)
    events = (*events, *_hold_event(status, hold))
    status = _set(case, status, ConditionType.WORKERS_READY, "False", hold.reason, hold.message)
    if status.attempt == 1 or child is not None:
        text = "the workers are not ready yet"
        kind, reason = ConditionType.PROGRESSING, "WaitingForWorkers"
        status = _set(case, status, kind, "False", reason, text)
    return status, events


def _refer(status: JobStatus, child: ChildJob | None) -> tuple[JobStatus, tuple[Event, ...]]:
    if child is None or status.job_ref is not None:
        return status, ()
    reference = JobReference(name=child.name, uid=child.uid)
    status = status.model_copy(update={"job_ref": reference})
    message = f"Job {child.name} was created for attempt {status.attempt}"
    return status, (Event(reason="JobCreated", message=message, action="Create"),)


def _suspended(case: Case, status: JobStatus) -> JobStatus:
    for kind in (ConditionType.WORKERS_READY, ConditionType.PROGRESSING):
        status = _set(case, status, kind, "False", "Suspended", "")
    return status


def _waiting_hold(
    case: Case, status: JobStatus, child: ChildJob | None, pods: tuple[Pod, ...]
) -> Hold:
    leaving = old_pods(case, status)
    if child is None and leaving and case.observed.refusal is None:
        names = ", ".join(sorted(pod.name for pod in leaving)[:4])
        text = f"{len(leaving)} workers of the attempt before are still ending: {names}"
        return Hold(reason="OldWorkersEnding", message=text)
    if child is None and case.observed.refusal is None and starts_at(status) > case.now:
        return Hold(reason="BackingOff", message=f"workers start at {status.not_before}")
    return hold_of(child, case.observed, pods, case.job.count)


def _hold_event(status: JobStatus, hold: Hold) -> tuple[Event, ...]:
    """A warning once for each new reason; waiting as such is none."""
    usual = ("WaitingForWorkers", "OldWorkersEnding", "BackingOff", "GangRestarting")
    if hold.reason in usual or hold.reason == reason_of(status, ConditionType.WORKERS_READY):
        return ()
    message = f"{hold.reason}: {hold.message}"
    return (Event(reason="WorkersNotReady", message=message, type="Warning", action="Start"),)


def _progressing(case: Case, status: JobStatus) -> JobStatus:
    """Whether work goes on, as far as reports tell; without reports, running workers do work."""
    progress = status.progress
    if progress is not None and progress.attempt == status.attempt:
        heard = parse_time(progress.last_update_time)
        if heard is not None and case.now - heard > STALL:
            text = f"no report since {progress.last_update_time}"
            kind = ConditionType.PROGRESSING
            return _set(case, status, kind, "False", "NoRecentReport", text)
    return _set(case, status, ConditionType.PROGRESSING, "True", "GangRunning", "")


def starts_at(status: JobStatus) -> datetime:
    """When the present attempt's pods may be created."""
    earliest = parse_time(status.not_before)
    return earliest if earliest is not None else datetime.fromtimestamp(0, tz=UTC)


def deeds(case: Case, status: JobStatus) -> tuple[Action, ...]:
    """What brings the children to what the status says, in order."""
    child = child_of(case.observed, status.attempt)
    actions: list[Action] = [
        delete_job(job)
        for job in case.observed.jobs
        if job.attempt < status.attempt and not job.deleting
    ]
    actions += suspension_actions(case, status)
    if holds(status, ConditionType.SUSPENDED):
        return tuple(actions)
    if child is None and status.job_ref is None and status.attempt > 0:
        if not old_pods(case, status) and starts_at(status) <= case.now:
            actions += _small_children(case)
            manifest = attempt_job(case.job, status.attempt, case.settings)
            actions.append(CreateJob(manifest=manifest))
    elif child is not None and not child.deleting:
        name = child_name(case.job.name, case.job.uid)
        if not case.observed.service_exists or children_missing(case.observed, name):
            actions += _small_children(case)
        elif case.observed.trust_stale:
            actions.append(Ensure(manifest=config_map(case.job, case.settings)))
    return tuple(actions)


def _small_children(case: Case) -> list[Action]:
    """The Service first: it tells that there may be others."""
    return [
        Ensure(manifest=service(case.job)),
        Ensure(manifest=service_account(case.job)),
        Ensure(manifest=config_map(case.job, case.settings)),
        Ensure(manifest=network_policy(case.job, case.settings)),
    ]


def _set(
    case: Case, status: JobStatus, kind: ConditionType, truth: Truth, reason: str, message: str
) -> JobStatus:
    return with_condition(status, kind, truth, reason, message, now=case.now)

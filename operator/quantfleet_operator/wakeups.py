"""When a job must be looked at again although nothing happens: deadlines, back-off, lost pods."""

from datetime import datetime, timedelta

from quantfleet_api.status import ConditionType, JobStatus
from quantfleet_operator.case import Case, child_of
from quantfleet_operator.conditions import holds
from quantfleet_operator.deadlines import active_time_left, seconds_since, waiting_time_left
from quantfleet_operator.evidence import lost_at
from quantfleet_operator.gang import STALL, starts_at
from quantfleet_operator.holds import DIAGNOSE_AFTER_SECONDS, DIAGNOSE_EVERY_SECONDS
from quantfleet_operator.observed import parse_time

REFUSED_AGAIN_SECONDS = 10
"""How often a child that could not be created is tried again."""
SHORTEST = 0.2


def next_look(case: Case, status: JobStatus) -> float | None:
    """Seconds until then; None where only events can change anything."""
    waits: list[float] = []
    for left in (
        active_time_left(status, case.policy, case.now),
        waiting_time_left(status, case.policy, case.now),
    ):
        if left is not None:
            waits.append(left)
    waits += [_seconds(case, at) for at in _times(case, status)]
    if status.waiting_since is not None:
        early = seconds_since(status.waiting_since, case.now) < DIAGNOSE_AFTER_SECONDS
        waits.append(DIAGNOSE_AFTER_SECONDS if early else DIAGNOSE_EVERY_SECONDS)
    if case.observed.refusal is not None:
        waits.append(REFUSED_AGAIN_SECONDS)
    return max(SHORTEST, min(waits)) if waits else None


def _times(case: Case, status: JobStatus) -> list[datetime]:
    times = [
        lost_at(pod, pod.deletion_time)
        for pod in case.observed.pods
        if not pod.terminal and pod.deletion_time is not None
    ]
    if status.not_before is not None and child_of(case.observed, status.attempt) is None:
        times.append(starts_at(status))
    progress = status.progress
    running = holds(status, ConditionType.WORKERS_READY)
    if running and progress is not None and progress.attempt == status.attempt:
        heard = parse_time(progress.last_update_time)
        times += [heard + STALL + timedelta(seconds=1)] if heard is not None else []
    return [time for time in times if time > case.now]


def _seconds(case: Case, at: datetime) -> float:
    return (at - case.now).total_seconds()

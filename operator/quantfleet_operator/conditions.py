"""Conditions of a status: read, set, and the phase that is derived from them.

A condition's transition time changes with its status only; Complete and Failed are never both
True, because a status in which one of them is True is final.
"""

from datetime import datetime
from typing import Literal

from quantfleet_api.status import (
    MOST_MESSAGE,
    Condition,
    ConditionType,
    JobStatus,
    Phase,
)
from quantfleet_operator.observed import format_time

Truth = Literal["True", "False", "Unknown"]
_PUBLISHING = ("Verifying", "Publishing", "Done")
"""Stages of the workers' progress after the last layer."""


def condition_of(status: JobStatus, kind: ConditionType) -> Condition | None:
    """The condition of a type, if it was ever set."""
    return next((item for item in status.conditions if item.type is kind), None)


def holds(status: JobStatus, kind: ConditionType) -> bool:
    """Whether a condition is True."""
    found = condition_of(status, kind)
    return found is not None and found.status == "True"


def reason_of(status: JobStatus, kind: ConditionType) -> str:
    """A condition's reason, or "" where it was never set."""
    found = condition_of(status, kind)
    return found.reason if found is not None else ""


def is_terminal(status: JobStatus) -> bool:
    """Whether the status is final (law L10)."""
    return holds(status, ConditionType.COMPLETE) or holds(status, ConditionType.FAILED)


def with_condition(
    status: JobStatus,
    kind: ConditionType,
    truth: Truth,
    reason: str,
    message: str = "",
    *,
    now: datetime,
) -> JobStatus:
    """The status with one condition set; it speaks of the status's observed generation."""
    old = condition_of(status, kind)
    since = old.last_transition_time if old and old.status == truth else format_time(now)
    new = Condition(
        type=kind,
        status=truth,
        reason=reason,
        message=message[:MOST_MESSAGE],
        last_transition_time=since,
        observed_generation=status.observed_generation,
    )
    others = {item.type: item for item in status.conditions} | {kind: new}
    ordered = tuple(others[known] for known in ConditionType if known in others)
    return status.model_copy(update={"conditions": ordered})


def with_all_conditions(status: JobStatus, *, now: datetime) -> JobStatus:
    """The status with every condition present: what was never decided is Unknown."""
    for kind in ConditionType:
        if condition_of(status, kind) is None:
            status = with_condition(status, kind, "Unknown", "NotYetKnown", now=now)
    return status


def phase_of(status: JobStatus) -> Phase:
    """The word for people that sums up conditions, restarts and progress."""
    if holds(status, ConditionType.COMPLETE):
        return Phase.SUCCEEDED
    if holds(status, ConditionType.FAILED):
        return Phase.FAILED
    if holds(status, ConditionType.SUSPENDED):
        return Phase.SUSPENDED
    if status.attempt == 0:
        return Phase.PENDING
    if status.job_ref is None:
        return Phase.RESTARTING if status.attempt > 1 else Phase.PENDING
    if not holds(status, ConditionType.WORKERS_READY) and status.waiting_since is not None:
        return Phase.STARTING
    progress = status.progress
    publishing = progress is not None and progress.attempt == status.attempt
    if publishing and progress is not None and progress.stage in _PUBLISHING:
        return Phase.PUBLISHING
    return Phase.CALIBRATING

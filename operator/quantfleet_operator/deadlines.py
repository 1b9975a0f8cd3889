"""The clocks of a job: how long it may be active, how long workers may take, when children go.

The active clock runs from the first attempt on, over all attempts, and stands still while the job
is suspended; whenever it stops, what it showed is banked in `status.activeSeconds` (rule C15). The
waiting clock runs while the present attempt's workers are not all ready. Durations in seconds.
"""

from datetime import datetime, timedelta

from quantfleet_api.spec import RunPolicy
from quantfleet_api.status import JobStatus
from quantfleet_operator.observed import format_time, parse_time


def active_seconds(status: JobStatus, now: datetime) -> int:
    """Seconds that the job was active, all attempts together."""
    return status.active_seconds + seconds_since(status.active_since, now)


def start_clocks(status: JobStatus, *, waiting_from: datetime, now: datetime) -> JobStatus:
    """Starts the active clock unless it runs, and the waiting clock anew."""
    update = {
        "active_since": status.active_since or format_time(now),
        "waiting_since": format_time(waiting_from),
    }
    return status.model_copy(update=update)


def stop_clocks(status: JobStatus, now: datetime) -> JobStatus:
    """Stops both clocks; what the active one showed is banked."""
    update = {
        "active_seconds": active_seconds(status, now),
        "active_since": None,
        "waiting_since": None,
    }
    return status.model_copy(update=update)


def active_time_left(status: JobStatus, policy: RunPolicy, now: datetime) -> int | None:
    """Seconds until activeDeadlineSeconds is over; None without one or while its clock stops."""
    if policy.active_deadline_seconds is None or status.active_since is None:
        return None
    return policy.active_deadline_seconds - active_seconds(status, now)


def waiting_time_left(status: JobStatus, policy: RunPolicy, now: datetime) -> int | None:
    """Seconds until preRunningDeadlineSeconds is over; None without one or while not waiting."""
    if policy.pre_running_deadline_seconds is None or status.waiting_since is None:
        return None
    return policy.pre_running_deadline_seconds - seconds_since(status.waiting_since, now)


def children_go_in(status: JobStatus, ttl_seconds: int | None, now: datetime) -> int | None:
    """Seconds until a finished job's children are deleted, 0 once it is time; None = never."""
    finished = parse_time(status.completion_time)
    if ttl_seconds is None or finished is None:
        return None
    left = finished + timedelta(seconds=ttl_seconds) - now
    return max(0, -(-left // timedelta(seconds=1)))


def seconds_since(start: str | None, now: datetime) -> int:
    """Whole seconds since a time; 0 where it lies ahead, as after a change of clocks."""
    begun = parse_time(start)
    return 0 if begun is None else max(0, (now - begun) // timedelta(seconds=1))

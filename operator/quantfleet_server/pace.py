"""When a job's progress is written into its status: seldom, but the end at once (rule C16).

Pure. Everything else goes to watchers; the status is for those who ask the API server.
"""

from dataclasses import dataclass

from quantfleet_api.status import ReportedProgress

STAGE_SECONDS = 1.0
"""Least time before a new stage is written."""
UNCHANGED_SECONDS = 60.0
"""How often the time of the last report alone is written: it tells that workers live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was last written, and when by a clock that never goes back, in seconds."""

    progress: ReportedProgress | None = None
    at: float = float("-inf")


def seconds_until_due(
    progress: ReportedProgress, written: Written, now: float, *, write_seconds: float
) -> float | None:
    """Seconds until `progress` should be written; None where there is nothing to write."""
    last = written.progress
    if last == progress:
        return None
    if last is None or last.attempt != progress.attempt or last.stage != progress.stage:
        wait = STAGE_SECONDS
    elif last.model_copy(update={"last_update_time": progress.last_update_time}) == progress:
        wait = max(UNCHANGED_SECONDS, write_seconds)
    else:
        wait = write_seconds
    return max(0.0, written.at + wait - now)

"""When progress is written into the status."""

from typing import Any

import pytest

from quantfleet_api.status import ReportedProgress
from quantfleet_server.pace import Written, seconds_until_due

TIME = "2026-11-30T12:00:00Z"
BEFORE = ReportedProgress(attempt=1, stage="Calibrating", percent=10, last_update_time=TIME)


def due(now: float, written: Written | None = None, **changes: Any) -> float | None:
    progress = BEFORE.model_copy(update=changes)
    last = written or Written(progress=BEFORE, at=100.0)
    return seconds_until_due(progress, last, now, write_seconds=10)


def test_what_never_was_written_is_written_at_once() -> None:
    assert due(0.0, Written()) == 0.0


def test_what_is_written_is_not_written_again() -> None:
    assert due(1e9) is None


@pytest.mark.parametrize(
    ("changes", "wait"),
    [
        ({"percent": 11}, 10.0),
        ({"estimated_remaining_seconds": 3}, 10.0),
        ({"stage": "Publishing"}, 1.0),
        ({"attempt": 2}, 1.0),
        ({"last_update_time": "2026-11-30T12:00:05Z"}, 60.0),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_waits(changes: dict[str, Any], wait: float) -> None:
    assert due(100.0, **changes) == wait
    assert due(100.0 + wait, **changes) == 0.0
    assert due(200.0, **changes) == 0.0


def test_a_server_that_starts_anew_may_write_at_once() -> None:
    assert due(0.0, Written(progress=BEFORE), percent=12) == 0.0

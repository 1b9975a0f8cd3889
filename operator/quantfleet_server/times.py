"""Times as the status has them: RFC 3339 in UTC, to the microsecond."""

from datetime import UTC, datetime


def format_time(time: datetime) -> str:
    """A time of an aware clock."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """The time that `format_time` wrote, or another writer of the status."""
    return datetime.fromisoformat(text)

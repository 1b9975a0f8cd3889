"""What the API server can answer, sorted by what is to be done about it.

ApiError
  Unavailable     throttled, failed or not reached: try again later
  Stale           the object changed or is gone: look at it again
  AlreadyExists   an object of that name is there
  Refused         this request will not be taken as it is
  NamespaceEnding the namespace is being deleted: nothing can be created there any more
"""

import json
from collections.abc import Mapping
from typing import Any

MOST_MESSAGE = 1024


class ApiError(Exception):
    """A request that was not carried out."""


class Unavailable(ApiError):
    """Throttled (429), failed (5xx), unauthorized for now (401), or not reached at all."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds that the server asked to wait, if it did."""


class Stale(ApiError):
    """The object was changed (409), or it is gone (404)."""


class AlreadyExists(ApiError):
    """An object of that name exists."""


class Refused(ApiError):
    """The request is refused; `status` is 400, 403, 422 or the like."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NamespaceEnding(ApiError):
    """The namespace is being deleted, or is gone."""


def error_of(verb: str, status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error that an answer with a status of 300 or more means."""
    answer = _parsed(body)
    message = str(answer.get("message") or body[:200].decode(errors="replace"))[:MOST_MESSAGE]
    reason = answer.get("reason")
    if status == 429 or status >= 500 or status in (401, 408):
        return Unavailable(f"{status}: {message}", _retry_after(headers))
    if _namespace_ending(answer) or (verb == "create" and status == 404):
        return NamespaceEnding(message)
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists(message)
    if status in (404, 409):
        return Stale(message)
    return Refused(status, message)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _namespace_ending(answer: Mapping[str, Any]) -> bool:
    causes = (answer.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None

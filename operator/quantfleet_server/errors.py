"""What goes wrong in a request, as the API server would say it: a metav1.Status, never a traceback.

Raised by routes and by what they call; turned into an answer in one place, `answer_of`.
"""

import math
from typing import Literal

from starlette.responses import Response

from quantfleet_api.fields import Manifest

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "Timeout",
    409: "Conflict",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class Details(Manifest):
    """More about an error."""

    retry_after_seconds: int | None = None
    """How long to wait before the request is worth another try, in seconds."""


class Status(Manifest):
    """An error, in the form in which Kubernetes tells errors."""

    kind: Literal["Status"] = "Status"
    """Always Status."""
    api_version: Literal["v1"] = "v1"
    """Always v1."""
    status: Literal["Failure"] = "Failure"
    """Always Failure."""
    message: str
    """A sentence for people."""
    reason: str
    """One CamelCase word for programs."""
    code: int
    """The HTTP status."""
    details: Details | None = None
    """More about it."""


class Problem(Exception):
    """A request that gets no answer but an error."""

    def __init__(self, code: int, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))


def too_many(what: str, wait: float) -> Problem:
    """Whoever asks must wait so many seconds."""
    return Problem(429, f"too many {what}", retry_after=wait)


def answer_of(problem: Problem) -> Response:
    """The answer that an error is."""
    details = Details(retry_after_seconds=problem.retry_after) if problem.retry_after else None
    status = Status(
        message=problem.message,
        reason=REASONS.get(problem.code, "Unknown"),
        code=problem.code,
        details=details,
    )
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if problem.code == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="quantfleet"'
    if problem.code in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    return Response(
        status.model_dump_json(by_alias=True, exclude_none=True),
        status_code=problem.code,
        headers=headers,
        media_type="application/json",
    )

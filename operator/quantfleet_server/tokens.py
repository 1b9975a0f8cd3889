"""What a bearer token says about itself, before anybody is asked whether it is true.

Only what has the shape of a token for us, and has not expired by its own word, is worth a request
to the API server (rule C17). Nothing here is trusted: the API server verifies the signature.
"""

import base64
import json
import re
from dataclasses import dataclass
from typing import Any

from quantfleet_api.names import MOST_ATTEMPTS

MOST_TOKEN = 8192
_SHAPE = re.compile(r"[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}\Z")
_WORKER = re.compile(r"quantfleet/([0-9a-f][0-9a-f-]{0,62})/([1-9][0-9]{0,2})\Z")


class BadToken(Exception):
    """A header or a token that cannot be one of ours; says why, never what it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a token claims."""

    audiences: tuple[str, ...]
    expires: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAudience:
    """For whom a worker's token was made: an attempt of a job, by the job's UID."""

    audience: str
    uid: str
    attempt: int


def bearer_of(header: str | None) -> str:
    """The token of an Authorization header; the scheme's case does not matter."""
    if not header:
        raise BadToken("a bearer token is needed")
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise BadToken("the Authorization header must be `Bearer TOKEN`")
    if len(token) > MOST_TOKEN or not _SHAPE.match(token):
        raise BadToken("the bearer token is no JSON Web Token")
    return token


def claims_of(token: str) -> Claims:
    """What a token of the right shape claims."""
    try:
        part = token.split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        given = claims.get("aud")
        audiences = tuple([given] if isinstance(given, str) else given)
        if not all(isinstance(audience, str) for audience in audiences):
            raise TypeError
        return Claims(audiences=audiences, expires=float(claims["exp"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadToken("the bearer token does not say for whom it is and when it ends") from None


def checked(token: str, now: float) -> Claims:
    """The claims of a token that has not expired by its own word; `now` in seconds since 1970."""
    claims = claims_of(token)
    if not claims.expires > now:
        raise BadToken("the bearer token has expired")
    return claims


def worker_audience(claims: Claims) -> WorkerAudience:
    """The attempt of a job that a worker's token is for."""
    for audience in claims.audiences:
        found = _WORKER.match(audience)
        if found is not None and int(found[2]) <= MOST_ATTEMPTS:
            return WorkerAudience(audience=audience, uid=found[1], attempt=int(found[2]))
    raise BadToken("the bearer token is not for reports of a job")


def for_audience(claims: Claims, audience: str) -> None:
    """Raises BadToken unless the token claims to be for this audience."""
    if audience not in claims.audiences:
        raise BadToken(f"the bearer token must be for the audience {audience}")

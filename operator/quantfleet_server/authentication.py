"""Who asks, and what they may: workers by a token of their job, readers by a token for this server.

The API server decides both, by TokenReview and SubjectAccessReview; its answers are remembered for
a short while. Neither accepts a token that is good for the API server itself (rule C18): it would
lie around here.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from quantfleet_api.names import child_name
from quantfleet_api.report import server_audience
from quantfleet_server.cluster import Cluster, User
from quantfleet_server.errors import Problem, too_many
from quantfleet_server.jobs import Job
from quantfleet_server.limits import Buckets
from quantfleet_server.remembered import Remembered
from quantfleet_server.tokens import (
    BadToken,
    Claims,
    WorkerAudience,
    bearer_of,
    checked,
    for_audience,
    worker_audience,
)

NO_SECONDS = 5.0
"""How long the API server's no counts, to a token or to a right."""
MAY_SECONDS = 10.0
"""How long its yes to a right counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the API server says of a token."""

    user: User | None
    expires: float


@dataclass(slots=True, kw_only=True)
class Door:
    """Lets requests in; lives in one event loop."""

    cluster: Cluster
    wall: Callable[[], float]
    """Seconds since 1970, which tokens count in."""
    clock: Callable[[], float]
    tokens: Remembered[Verdict]
    rights: Remembered[bool]
    addresses: Buckets
    """Tokens that were never good before, by the address that they come from."""
    reports: Buckets
    """Reports, by token."""
    reads: Buckets
    """Reads, by user."""

    async def worker(self, header: str | None, address: str) -> tuple[WorkerAudience, User]:
        """The attempt that a worker's token is for, and its account; raises Problem."""
        token, claims = self._shown(header, address)
        try:
            audience = worker_audience(claims)
        except BadToken as error:
            raise Problem(401, str(error)) from None
        user = await self._user(token, claims, audience.audience, address)
        wait = self.reports.take(_digest(token), self.clock())
        if wait:
            raise too_many("reports", wait)
        return audience, user

    async def reader(self, header: str | None, address: str) -> User:
        """The user who reads; raises Problem."""
        token, claims = self._shown(header, address)
        try:
            for_audience(claims, server_audience())
        except BadToken as error:
            raise Problem(401, str(error)) from None
        user = await self._user(token, claims, server_audience(), address)
        wait = self.reads.take(user.name, self.clock())
        if wait:
            raise too_many("requests", wait)
        return user

    def _shown(self, header: str | None, address: str) -> tuple[str, Claims]:
        try:
            token = bearer_of(header)
            return token, checked(token, self.wall())
        except BadToken as error:
            raise Problem(401, str(error)) from None

    async def _user(self, token: str, claims: Claims, audience: str, address: str) -> User:
        key = _digest(f"{audience}\0{token}")
        last = self.tokens.last(key)
        if last is None or last.user is None:  # one that was good before is no garbage
            wait = self.addresses.take(address, self.clock())
            if wait:
                raise too_many("tokens from this address", wait)

        async def ask() -> Verdict:
            return Verdict(user=await self.cluster.review(token, audience), expires=claims.expires)

        verdict = await self.tokens.get(key, ask)
        if verdict.user is None:
            raise Problem(401, "the API server does not accept the bearer token")
        return verdict.user

    async def may(self, user: User, verb: str, namespace: str | None, name: str = "") -> bool:
        """Whether a user may get or list jobs (namespace None: in all namespaces)."""
        key = _digest(repr((user, verb, namespace, name)))
        return await self.rights.get(key, lambda: self.cluster.may(user, verb, namespace, name))


def open_door(
    cluster: Cluster,
    *,
    wall: Callable[[], float],
    clock: Callable[[], float],
    token_seconds: float,
    reports_per_second: float,
) -> Door:
    """A door that nobody has come through yet."""

    def token_counts(verdict: Verdict) -> float:
        left = verdict.expires - wall()
        return min(NO_SECONDS if verdict.user is None else token_seconds, left)

    return Door(
        cluster=cluster,
        wall=wall,
        clock=clock,
        tokens=Remembered(clock=clock, seconds_of=token_counts),
        rights=Remembered(clock=clock, seconds_of=lambda yes: MAY_SECONDS if yes else NO_SECONDS),
        # all pods of a node may come from one address
        addresses=Buckets(rate=50, burst=1000),
        reports=Buckets(rate=reports_per_second, burst=20),
        reads=Buckets(rate=50, burst=500),
    )


def check_account(user: User, job: Job) -> None:
    """Raises Problem unless the account is the job's own (rule C17): not another's token."""
    account = child_name(job.name, job.uid)
    if user.name != f"system:serviceaccount:{job.namespace}:{account}":
        raise Problem(403, f"the token must be of the service account {account} of this job")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

"""Keeps the jobs equal to what the API server has: a list, then a watch, and again, for ever.

A watch that ends goes on from where it was; only where the API server no longer knows that place
(410) everything is listed anew.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from quantfleet_operator.answers import ApiError
from quantfleet_server.board import Board
from quantfleet_server.cluster import Cluster
from quantfleet_server.jobs import parse_job
from quantfleet_server.metrics import WATCH_RESTARTS

logger = logging.getLogger(__name__)

SHORTEST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds between two tries while the API server does not answer."""
LONGEST_SILENCE = 330.0
"""Seconds: a watch lasts 240 s, and ends after 90 s without a word."""


class Expired(Exception):
    """The API server no longer knows the version from which a watch should go on."""


@dataclass(slots=True, kw_only=True)
class Watching:
    """The watch of a namespace (None: of all)."""

    cluster: Cluster
    board: Board
    namespace: str | None
    clock: Callable[[], float]
    synchronized: bool = False
    """Whether everything was listed once."""
    moved: float = 0.0
    """When the watch last did anything, were it to fail."""
    _version: str = ""

    async def run(self) -> None:
        """Never returns."""
        wait = SHORTEST_WAIT
        while True:
            self.moved = self.clock()
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                wait = SHORTEST_WAIT
            except Expired:
                self._version = ""
            except (ApiError, ValueError) as error:
                logger.warning("watch broken, again in wait=%.1f: %s", wait, error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _list(self) -> None:
        listed, version = await self.cluster.list_jobs(self.namespace)
        WATCH_RESTARTS.inc()
        jobs = tuple(parse_job(raw) for raw in listed)
        self.board.listed(jobs, int(version), self.namespace)
        self._version, self.synchronized = version, True
        logger.info("listed jobs=%d namespace=%s", len(jobs), self.namespace or "*")

    async def _follow(self) -> None:
        try:
            async for event in self.cluster.watch_jobs(self.namespace, self._version):
                self.moved = self.clock()
                raw = event["object"]
                match event["type"]:
                    case "ERROR":
                        raise Expired
                    case "DELETED":
                        self.board.removed(parse_job(raw))
                    case "ADDED" | "MODIFIED":
                        self.board.changed(parse_job(raw))
                self._version = raw["metadata"]["resourceVersion"]
        except ApiError as error:
            if getattr(error, "status", 0) == 410:
                raise Expired from error
            raise

    def stuck(self) -> str:
        """Why the process should be restarted, or ""; that nobody answers is no reason."""
        still = self.clock() - self.moved
        return f"the watch of jobs is stuck for {still:.0f} s" if still > LONGEST_SILENCE else ""

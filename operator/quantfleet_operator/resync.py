"""The resync: lists everything now and then, mends the store, and has every job looked at.

It is what makes a lost watch event harmless: after a gap in the resource versions a watch starts
anew with a list, in which deletions of the meantime do not appear. So it also runs soon after a
watch started anew.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from quantfleet_operator.answers import ApiError
from quantfleet_operator.cluster import Cluster
from quantfleet_operator.health import Health
from quantfleet_operator.metrics import WATCH_MISSES
from quantfleet_operator.settings import Settings
from quantfleet_operator.store import KINDS, Key, Kind, Store
from quantfleet_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""After a watch started anew: its list is brought event by event."""
RETRY_SECONDS = 3.0
SPREAD_SECONDS = 10.0
"""Looks after a resync are spread over this time."""


@dataclass(slots=True, kw_only=True)
class Resync:
    """The loop and the wish to run it soon; lives in one event loop."""

    cluster: Cluster
    store: Store
    queue: WorkQueue[Key]
    health: Health
    settings: Settings
    clock: Callable[[], float]
    wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def soon(self) -> None:
        """A watch started anew."""
        self.wanted.set()

    async def first(self) -> None:
        """Lists everything for the first time; nothing may be looked at before."""
        while not await self._tried():
            await asyncio.sleep(RETRY_SECONDS)

    async def run(self) -> None:
        """Resyncs forever. It makes no tasks: kopf would wait for them at the end."""
        loop = asyncio.get_running_loop()
        wait = float(self.settings.resync_seconds)
        while True:
            timer = loop.call_later(wait, self.wanted.set)
            await self.wanted.wait()
            timer.cancel()
            await asyncio.sleep(SETTLE_SECONDS)
            self.wanted.clear()
            done = await self._tried()
            wait = float(self.settings.resync_seconds) if done else RETRY_SECONDS

    async def _tried(self) -> bool:
        try:
            await self.once()
        except ApiError as error:
            logger.warning("resync failed, again in %.0f s: %s", RETRY_SECONDS, error)
            return False
        return True

    async def once(self) -> None:
        """Lists every kind and mends the store by it; then every job is looked at."""
        first = self.health.synchronized is None
        changed: set[Key] = set()
        for kind in KINDS:
            changed |= await self._mend(kind, first=first)
        for key in changed:
            self.queue.add(key)
        loop = asyncio.get_running_loop()
        for key in set(self.store.keys()) - changed:
            delay = 0.0 if first else random.uniform(0.0, SPREAD_SECONDS)
            loop.call_later(delay, self.queue.add, key)
        self.health.synchronized = self.clock()

    async def _mend(self, kind: Kind, *, first: bool) -> set[Key]:
        changed: set[Key] = set()
        quiet_since = self.health.synchronized
        heard = self.health.events.get(kind, -1.0)
        for namespace in self.settings.namespaces or (None,):
            page = await self.cluster.list_all(KINDS[kind], kind, namespace)
            changed |= self.store.replace_all(kind, page.items, page.resource_version, namespace)
        if first or quiet_since is None:
            return changed
        # Events that are just under way are no misses: only a watch that was silent all the time.
        missed = len(changed) if self.health.events.get(kind, -1.0) == heard <= quiet_since else 0
        self.health.resynced(kind, missed)
        WATCH_MISSES.labels(kind=kind).inc(missed)
        if missed:
            logger.warning("resync found changes kind=%s count=%d", kind, missed)
        return changed

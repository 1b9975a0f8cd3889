"""The work queue: keys to look at, each at most once, later again, and slower after failures.

Watches add keys, the controller's workers take them. A key is worked on by one worker at a time; a
key that is added meanwhile comes again afterwards. All of it lives in one event loop; times are
seconds by the loop's clock (rule C15).
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SHORTEST_BACKOFF, LONGEST_BACKOFF = 0.2, 60.0


class WorkQueue(Generic[K]):
    """Keys, deduplicated, in order of arrival."""

    def __init__(self, *, seed: int = 0) -> None:
        self._ready: OrderedDict[K, float] = OrderedDict()  # key -> since when
        self._active: dict[K, float] = {}
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._soon: set[K] = set()
        self._failures: dict[K, int] = {}
        self._arrived = asyncio.Event()
        self._random = random.Random(seed)

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """The key is to be looked at now."""
        if key in self._active:
            self._again.add(key)
            return
        self._ready.setdefault(key, self._now())
        self._arrived.set()

    def soon(self, key: K, delay: float) -> None:
        """The key is to be looked at within `delay` seconds, together with what comes till then."""
        if key not in self._soon:
            self._soon.add(key)
            asyncio.get_running_loop().call_later(delay, self._arrive, key)

    def schedule(self, key: K, delay: float) -> None:
        """The key is to be looked at after `delay` seconds; replaces an earlier such wish."""
        self.unschedule(key)
        if delay <= 0:
            self.add(key)
        else:
            self._timers[key] = asyncio.get_running_loop().call_later(delay, self._due, key)

    def unschedule(self, key: K) -> None:
        """Forgets when the key was to be looked at."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def get(self) -> K:
        """Waits for a key; the caller must say `done` or `failed` when it has looked at it."""
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        key, _ = self._ready.popitem(last=False)
        self._active[key] = self._now()
        return key

    def done(self, key: K) -> None:
        """The look was a success."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(
        self, key: K, *, retry_after: float | None = None, longest: float = LONGEST_BACKOFF
    ) -> float:
        """The look failed: again after a back-off, or after what the server asked for.

        Returns the wait in seconds: 0.2 doubled with each failure in a row, at most `longest`, less
        up to a half by chance, so that many keys do not come back at once.
        """
        count = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(SHORTEST_BACKOFF * 2.0 ** min(count - 1, 16), longest)
        wait *= self._random.uniform(0.5, 1.0)
        wait = max(wait, retry_after or 0.0)
        self._again.discard(key)  # what arrived meanwhile is seen then
        self._release(key)
        self.schedule(key, wait)
        return wait

    def forget(self, key: K) -> None:
        """Nothing of this key is left to do."""
        self.unschedule(key)
        self._failures.pop(key, None)

    def oldest_wait(self) -> float:
        """Seconds that the key at the head has waited."""
        return self._now() - next(iter(self._ready.values())) if self._ready else 0.0

    def longest_look(self) -> float:
        """Seconds that the longest look now under way has taken."""
        return self._now() - min(self._active.values()) if self._active else 0.0

    def _arrive(self, key: K) -> None:
        self._soon.discard(key)
        if key not in self._failures:  # one that failed waits for its back-off
            self.add(key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _release(self, key: K) -> None:
        self._active.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

"""Answers that are remembered for a while, and asked for once however many wait for them.

Used for what the API server says about tokens and rights. Bounded; an error is never remembered.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(slots=True, kw_only=True)
class Remembered(Generic[V]):
    """Answers by key; `seconds_of` says how long an answer counts, `clock` never goes back."""

    clock: Callable[[], float]
    seconds_of: Callable[[V], float]
    most: int = 10_000
    _kept: OrderedDict[str, tuple[float, V]] = field(default_factory=OrderedDict)
    _asked: dict[str, asyncio.Task[V]] = field(default_factory=dict)

    def find(self, key: str) -> V | None:
        """The answer, if it is known and still counts."""
        found = self._kept.get(key)
        if found is None or found[0] <= self.clock():
            return None
        self._kept.move_to_end(key)
        return found[1]

    def last(self, key: str) -> V | None:
        """The last answer, even if it no longer counts; None where it was forgotten."""
        found = self._kept.get(key)
        return None if found is None else found[1]

    async def get(self, key: str, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer; asked for where it is not known, together with all who wait for it."""
        found = self.find(key)
        if found is not None:
            return found
        task = self._asked.get(key)
        if task is None:
            task = asyncio.ensure_future(self._ask(key, ask))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # one who goes away must not take the answer from the others
        return await asyncio.shield(task)

    async def _ask(self, key: str, ask: Callable[[], Awaitable[V]]) -> V:
        answer = await ask()
        self._kept[key] = (self.clock() + self.seconds_of(answer), answer)
        self._kept.move_to_end(key)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return answer

    def _forget(self, key: str, task: asyncio.Task[V]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen here, should nobody have waited to the end

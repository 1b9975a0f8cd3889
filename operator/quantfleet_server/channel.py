"""The events of one job for its watchers: the latest few, numbered, for whoever comes or returns.

A watcher keeps no buffer of its own, only the number of the event that it had last. One that is
too slow, or was away too long, finds that the next event is no longer kept and gets the whole
state instead: it can miss steps, never the last state, and it costs no memory.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

KEPT = 64
"""Events of a job that are kept for watchers who come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event, written out once for all watchers."""

    number: int
    kind: str
    data: str


@dataclass(slots=True, kw_only=True)
class Channel:
    """The events of a job; lives in one event loop."""

    epoch: str
    """Differs with every start of the server: numbers of another start mean nothing."""
    ended: bool = False
    """Whether no event will follow."""
    _last: int = 0
    _kept: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT))
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, kind: str, data: str) -> None:
        """Adds an event and wakes all watchers."""
        self._last += 1
        self._kept.append(Event(number=self._last, kind=kind, data=data))
        self._wake()

    def end(self) -> None:
        """Lets the watchers go once they have all events."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @property
    def last(self) -> int:
        """Number of the latest event; 0 before the first."""
        return self._last

    def identifier(self, number: int) -> str:
        """An event's identifier, as a watcher gives it back."""
        return f"{self.epoch}-{number}"

    def number_of(self, identifier: str) -> int | None:
        """The number of an event of this start of the server; None for any other text."""
        epoch, _, number = identifier.partition("-")
        if epoch != self.epoch or not number.isascii() or not number.isdigit():
            return None
        return int(number) if len(number) < 16 and int(number) <= self._last else None

    def after(self, number: int) -> tuple[Event, ...] | None:
        """The events after a number; None where some of them are no longer kept."""
        if number < self._last - len(self._kept):
            return None
        return tuple(event for event in self._kept if event.number > number)

    async def news(self, number: int) -> None:
        """Returns when there are events after `number`, or no more will come."""
        while self._last <= number and not self.ended:
            await self._news.wait()

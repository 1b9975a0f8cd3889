"""Seconds by phase of one rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

PHASES = (
    "read",
    "forward",
    "statistics",
    "exchange",
    "solve",
    "encode",
    "write",
    "idle",
    "verify",
)
"""read: waiting for weights. exchange: transfers. idle: waiting for peers or for the writer.
write: of the background thread, which overlaps with the others."""


class Clock:
    """Adds up the time spent in each phase; phases do not nest."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Count the block's time as `phase`."""
        started = monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += monotonic() - started

    def move(self, seconds: float, *, source: str, target: str) -> None:
        """Count time that was measured as one phase as another."""
        self.seconds[source] -= seconds
        self.seconds[target] += seconds

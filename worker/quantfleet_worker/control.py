"""A rank's line to its launcher: progress out, stop requests and news of lost peers in.

The line is also the lifeline: when the launcher is gone, or says that a peer is, this process ends
at once, whatever its main thread waits for.
"""

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from quantfleet_api.errors import ExitCode, Interrupted
from quantfleet_api.progress import Progress, Stage
from quantfleet_worker.journal import LayerRecord, layer_report

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.2
"""A rank tells its progress at most this often, but every change of stage or layer at once."""


@dataclass(slots=True)
class Pace:
    """How fast this rank goes. A unit of work is one micro-batch in one pass."""

    total_units: int = 0
    done_units: int = 0
    started: float = 0.0
    pass_started: float = 0.0
    pass_tokens: int = 0
    place: tuple[int, int] = (-1, -1)  # layer, pass

    def step(self, *, layer: int, pass_index: int, tokens: int, now: float) -> dict[str, Any]:
        """One more unit is done; what to tell about the pace."""
        if not self.total_units:  # what is replayed is not what is left to do
            return {}
        if not self.done_units:
            self.started = now  # the first unit only starts the clock
        if self.place != (layer, pass_index):
            self.place, self.pass_started, self.pass_tokens = (layer, pass_index), now, 0
        else:
            self.pass_tokens += tokens
        self.done_units += 1
        in_pass, elapsed = now - self.pass_started, now - self.started
        left = self.total_units - self.done_units
        return {
            "tokens_per_second": self.pass_tokens / in_pass if in_pass > 0 else 0.0,
            "eta_seconds": elapsed / (self.done_units - 1) * left if self.done_units > 1 else None,
        }


@dataclass(slots=True)
class Control:
    """The rank's end of the line. All of it may be used from any thread."""

    connection: Connection
    rank: int
    world_size: int
    stop_code: int = 0
    pace: Pace = field(default_factory=Pace)
    state: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _told: float = 0.0
    _port: "threading.Event" = field(default_factory=threading.Event)
    _port_number: int = 0

    def send(self, kind: str, **content: Any) -> None:
        """Tell the launcher; a launcher that is gone is noticed by the listening thread."""
        with self._lock:
            try:
                self.connection.send({"kind": kind, **content})
            except (BrokenPipeError, ConnectionResetError, OSError):
                pass

    def progress(
        self, *, stage: Stage | None = None, tokens: int | None = None, **changes: Any
    ) -> None:
        """Note where this rank is; sent at once when stage or layer changes, else now and then.

        `tokens` says that one micro-batch of so many is done.
        """
        changed = stage is not None and stage != self.state.get("stage")
        changed |= "layer" in changes and changes["layer"] != self.state.get("layer")
        if stage is not None:
            self.state["stage"] = stage
        self.state |= changes
        now = monotonic()
        if tokens is not None:
            layer, pass_index = self.state.get("layer", 0), self.state.get("pass_index", 0)
            self.state |= self.pace.step(layer=layer, pass_index=pass_index, tokens=tokens, now=now)
        if changed or now - self._told >= PROGRESS_SECONDS:
            self._told = now
            message = Progress(rank=self.rank, world_size=self.world_size, **self.state)
            self.send("progress", progress=message.model_dump())

    def committed(self, layers: Sequence[LayerRecord]) -> None:
        """Tell which layers are committed, and how well they went."""
        reports = [layer_report(layer).model_dump() for layer in layers]
        self.send("layers", layers=reports)

    def announce_port(self, port: int) -> None:
        """Rank 0 tells where the others find it."""
        self.send("port", port=port)

    def wait_for_port(self) -> int:
        """The port that rank 0 told; without limit, the lifeline ends the wait."""
        self._port.wait()
        return self._port_number

    def should_stop(self) -> None:
        """Raise when this rank was asked to stop."""
        if self.stop_code:
            raise Interrupted("stopped on request")

    def listen(self) -> None:
        """The listening thread: stop requests, lost peers, the launcher's end."""
        while True:
            try:
                message = self.connection.recv()
            except (EOFError, OSError):
                leave(ExitCode.TRY_AGAIN, "the launcher is gone")
            match message["kind"]:
                case "port":
                    self._port_number = message["port"]
                    self._port.set()
                case "stop":
                    self.stop_code = message["code"]
                case "lost":
                    self.lost(message["rank"], message["why"])

    def lost(self, rank: int, why: str) -> None:
        """A peer is gone: say so and leave at once."""
        cause = f"rank {rank} was lost: {why}"
        self.send("end", code=int(ExitCode.TRY_AGAIN), cause=cause, lost=rank)
        leave(ExitCode.TRY_AGAIN, cause)


def leave(code: int, why: str) -> None:
    """End this process now: the main thread may never come back from a transfer."""
    logger.warning("leaving with code=%d: %s", code, why)
    logging.shutdown()
    os._exit(code)

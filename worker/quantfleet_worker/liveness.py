"""Names a lost rank within seconds, by heartbeats in the store.

Started by `run.py` beside the main thread. A rank that dies on this machine is noticed at once by
the launcher; heartbeats also notice one that is frozen, cut off, or on another machine.
"""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

from quantfleet_worker.exchange import open_store
from quantfleet_worker.messages import Rendezvous

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5
LOST_AFTER_SECONDS = 7.0
NEWS_SECONDS = LOST_AFTER_SECONDS + 4 * HEARTBEAT_SECONDS
"""How long after a rank is lost all others know which."""


class Liveness:
    """Heartbeats in the store: rank 0 watches all, the others watch rank 0.

    `on_lost(rank, why)` is called from this thread, at most once, and is expected to end the
    process: the main thread may be inside a transfer that will never finish.
    """

    def __init__(
        self, rendezvous: Rendezvous, port: int, on_lost: Callable[[int, str], None]
    ) -> None:
        self._rendezvous = rendezvous
        self._on_lost = on_lost
        self._stopping = threading.Event()
        # a client of its own: its answers must come in time, or rank 0 is lost
        self._store = open_store(
            rendezvous, port=port, timeout=timedelta(seconds=LOST_AFTER_SECONDS)
        )
        # at once: only who has been heard is missed
        self._store.set(f"heartbeat/{rendezvous.rank}", "0")
        self._answered = monotonic()
        self._thread = threading.Thread(target=self._watch, name="liveness", daemon=True)
        self._thread.start()
        # a store whose process is frozen takes questions and never answers, without a time-out
        threading.Thread(target=self._watch_store, name="store-liveness", daemon=True).start()

    def stop(self) -> None:
        """From here on nobody is missed by this rank; peers learn that it left on purpose."""
        self._stopping.set()
        self._thread.join(LOST_AFTER_SECONDS)  # a frozen store would keep it

    def _watch(self) -> None:
        seen: dict[int, tuple[bytes, float]] = {}
        count = 0
        while not self._stopping.wait(HEARTBEAT_SECONDS):
            count += 1
            try:
                verdict = self._beat(count, seen)
            except RuntimeError as error:
                if not self._stopping.is_set():
                    logger.info("store does not answer: %s", str(error).splitlines()[0])
                    self._on_lost(0, "its store does not answer")
                return
            self._answered = monotonic()
            if verdict is not None:
                self._on_lost(*verdict)
                return
        try:
            self._store.set(f"heartbeat/{self._rendezvous.rank}", "left")
        except RuntimeError:
            logger.info("store is gone before this rank left")

    def _watch_store(self) -> None:
        while not self._stopping.wait(HEARTBEAT_SECONDS):
            if monotonic() - self._answered > LOST_AFTER_SECONDS:
                self._on_lost(0, "its store does not answer")
                return

    def _beat(self, count: int, seen: dict[int, tuple[bytes, float]]) -> tuple[int, str] | None:
        """One round: tell, look, and return (rank, why) when somebody is lost."""
        rank = self._rendezvous.rank
        self._store.set(f"heartbeat/{rank}", str(count))
        if rank == 0:
            lost = self._silent(seen)
            if lost is not None:
                self._store.set("lost", f"{lost}")
                self._stopping.wait(2 * HEARTBEAT_SECONDS)  # the store lives until all have heard
        if self._store.check(["lost"]):
            lost = int(self._store.get("lost"))
            return lost, f"no heartbeat for {LOST_AFTER_SECONDS:.0f} s"
        return None

    def _silent(self, seen: dict[int, tuple[bytes, float]]) -> int | None:
        now = monotonic()
        for peer in range(1, self._rendezvous.world_size):
            key = f"heartbeat/{peer}"
            value = self._store.get(key) if self._store.check([key]) else b""
            if value in (b"", b"left"):
                continue  # has not begun (its launcher watches over that), or left on purpose
            if peer not in seen or seen[peer][0] != value:
                seen[peer] = (value, now)
            elif now - seen[peer][1] > LOST_AFTER_SECONDS:
                return peer
        return None

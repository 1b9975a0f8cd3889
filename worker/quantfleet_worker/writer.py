"""Background writing of one rank: files of finished layers, activation checkpoints, commits.

One thread a rank, in submission order. The engine checks `wait` before it may solve the next layer
(law L5), so at most one layer is in flight. A failure surfaces in the main thread.
"""

import queue
import threading
from collections.abc import Callable
from time import monotonic


class Writer:
    """Runs jobs one after another in a thread of its own; a failed job ends all."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._jobs: queue.Queue[tuple[int, Callable[[], None]] | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._submitted = self._done = -1  # last layers
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def submit(self, layer: int, job: Callable[[], None]) -> None:
        """Queue the writing of a layer."""
        self.check()
        self._submitted = layer
        self._jobs.put((layer, job))

    def check(self) -> None:
        """Raise what a job raised."""
        if self._failure is not None:
            raise self._failure

    def wait(self, layer: int, should_stop: Callable[[], None] | None = None) -> None:
        """Return when the job of `layer` is done; at once if an earlier attempt has done it."""
        layer = min(layer, self._submitted)
        with self._changed:
            while self._done < layer and self._failure is None:
                self._changed.wait(0.5)
                if should_stop is not None:
                    should_stop()
        self.check()

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._jobs.put(None)
        self._thread.join()
        self.check()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            layer, job = item
            started = monotonic()
            try:
                job()
            except BaseException as error:  # whatever it is: raised again in the main thread
                self._failure = error
            # a whole layer hangs on it, and must be gone before the next one is solved
            del item, job
            self._note(layer, started)
            if self._failure is not None:
                return

    def _note(self, layer: int, started: float) -> None:
        with self._changed:
            self.seconds += monotonic() - started
            self._done = layer
            self._changed.notify_all()

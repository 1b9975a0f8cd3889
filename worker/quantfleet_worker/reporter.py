"""Reports the progress of a pod's ranks to the status server, without ever being in the way.

Made by `pod.py` in the launcher's process; ranks never see the token. One background thread sends
the latest state; whatever happens to a report, the job goes on as if nothing had been sent (law
L9). A change of stage or layer is sent within a second, anything else as often as the server asks.
"""

import random
import signal
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from quantfleet_api.progress import Progress
from quantfleet_api.report import (
    MOST_LAYERS,
    MOST_RANKS,
    LayerReport,
    ProgressReport,
    ReportAnswer,
    ReportSummary,
    rank_report,
)
from quantfleet_worker.report_sender import NotTaken, Target, send

INTERVAL_SECONDS = 5.0
"""Between two reports without a change, until the server says how often it wants them."""
CHANGE_SECONDS = 1.0
"""Between two reports of changes: a small model has many layers a second."""
JITTER = 0.2
"""Waits are longer by up to this share, so that the pods of a gang do not speak in chorus."""
MOST_WAIT_SECONDS = 60.0
"""Longest pause after failures in a row; it doubles up to here."""
LAST_SECONDS = 4.5
"""How long pod 0 waits at its end for the last report to be taken."""
LAST_TRY_SECONDS = 0.5
"""Between two tries of the last report."""
OVER = 409
"""Another attempt is at work, or the job has ended: nobody wants reports any more."""
_RANDOM = random.Random()
"""Our own: numbers drawn by a thread must not change what seeded code draws."""


class Reporter:
    """The reports of one pod; `say` gets a line where reporting begins to fail, and to work again.

    Its methods return at once, from any thread; only `finish` may be told to wait.
    """

    def __init__(
        self, target: Target, *, attempt: int, pod: int, say: Callable[[str], None]
    ) -> None:
        self._target, self._attempt, self._pod, self._say = target, attempt, pod, say
        self._changes = threading.Condition()
        self._ranks: dict[int, Progress] = {}
        self._layers: dict[int, LayerReport] = {}
        self._summary: ReportSummary | None = None
        self._new = self._urgent = self._final = self._over = False
        self._known_layers = 0
        self._sequence = 0
        self._interval = INTERVAL_SECONDS
        self._failures = 0
        self._sent = self._not_before = monotonic() - CHANGE_SECONDS
        self._last_try = monotonic() - LAST_TRY_SECONDS
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def progress(self, progress: Progress) -> None:
        """Take in where a rank is; only the latest counts."""
        with self._changes:
            before = self._ranks.get(progress.rank)
            self._ranks[progress.rank] = progress
            place = (progress.stage, progress.layer)
            self._urgent |= before is None or place != (before.stage, before.layer)
            self._new = True
            self._changes.notify()

    def layers(self, layers: Sequence[LayerReport]) -> None:
        """Take in layers that are committed."""
        with self._changes:
            self._layers |= {layer.layer: layer for layer in layers}
            self._new = self._urgent = True
            self._changes.notify()

    def finish(self, summary: ReportSummary | None, *, seconds: float) -> None:
        """The pod ends: send the last report until it is taken, and wait so long."""
        with self._changes:
            self._summary, self._final = summary, True
            self._changes.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        # a signal is for the main thread, at a moment when that one has not blocked it
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        try:
            while not self._over and (report := self._next()) is not None:
                if self._send(report) and report.final:
                    return
        except Exception as error:  # a bug here must not cost the job
            self._say(f"progress is not reported any more: bug: {type(error).__name__}")

    def _next(self) -> ProgressReport | None:
        """Wait until a report is due; None where there is nothing to say at the end."""
        with self._changes:
            while (pause := self._pause(monotonic())) is None or pause > 0:
                if self._final and not self._ranks:
                    return None
                self._changes.wait(pause)
            return self._report()

    def _pause(self, now: float) -> float | None:
        """Seconds until a report is due; None while there is nothing new."""
        if self._final and self._ranks:
            return self._last_try + LAST_TRY_SECONDS - now
        if not self._new or not self._ranks:
            return None
        interval = CHANGE_SECONDS if self._urgent else self._interval
        return max(self._sent + interval, self._not_before) - now

    def _report(self) -> ProgressReport:
        self._new = self._urgent = False
        if self._final:
            self._last_try = monotonic()
        self._sequence += 1
        missing = [self._layers[i] for i in sorted(self._layers) if i >= self._known_layers]
        return ProgressReport(
            attempt=self._attempt,
            pod=self._pod,
            sequence=self._sequence,
            final=self._final,
            ranks=tuple(rank_report(self._ranks[r]) for r in sorted(self._ranks)[:MOST_RANKS]),
            layers=tuple(missing[:MOST_LAYERS]),
            summary=self._summary if self._final else None,
        )

    def _send(self, report: ProgressReport) -> bool:
        """Send and learn from the answer; whether it was taken."""
        try:
            answer = send(self._target, report)
        except NotTaken as error:
            self._refused(error)
            return False
        if self._failures:
            self._say("progress is reported again")
        with self._changes:
            self._failures = 0
            self._taken(answer)
        return True

    def _taken(self, answer: ReportAnswer) -> None:
        self._sent = monotonic()
        self._known_layers = answer.known_layers
        self._interval = _longer(answer.min_interval_seconds)
        lacking = any(layer >= answer.known_layers for layer in self._layers)
        self._new |= lacking

    def _refused(self, error: NotTaken) -> None:
        if error.status == OVER:
            self._over = True
            self._say("progress is not reported any more: the server waits for none (409)")
            return
        paced = error.status == 429
        if not paced and not self._failures:
            self._say(f"progress is not reported: {error}")
        with self._changes:
            self._new = True
            self._failures += 0 if paced else 1
            backoff = min(INTERVAL_SECONDS * 2 ** max(self._failures - 1, 0), MOST_WAIT_SECONDS)
            asked = error.retry_after
            self._sent = monotonic()
            self._not_before = self._sent + _longer(backoff if asked is None else asked)


def _longer(seconds: float) -> float:
    return seconds * (1.0 + JITTER * _RANDOM.random())

"""Shows a run while it runs: live on a terminal, plain lines elsewhere.

Used by `running`. Showing is best effort: a closed or broken output never ends a run.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from quantfleet_api.progress import Progress, Stage
from quantfleet_cli.failures import stop_writing
from quantfleet_cli.progress_board import Overview, ProgressBoard, overview_line, rank_cells

SECONDS_BETWEEN_LINES = 5.0
STAGES_OF_A_LAYER: frozenset[Stage] = frozenset({"Calibrating", "Solving", "Writing"})
"""They alternate within a layer; a line for each would be a flood."""

MOST_RANK_ROWS = 16
"""More ranks than this are summed up, so that the display fits on a screen."""


class Display(Protocol):
    """What the launcher's callbacks are given to."""

    def progress(self, message: Progress) -> None:
        """Shows a rank's message."""

    def log(self, line: str) -> None:
        """Shows a line of a rank's log."""


@contextmanager
def display_on(console: Console) -> Iterator[Display]:
    """The display that fits the console, until the end of the block."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainDisplay(out=sys.stdout, log_to=sys.stderr)
        return
    board = ProgressBoard()
    own_stderr = sys.stderr.isatty()  # else a log file would be drawn on the screen
    with Live(
        console=console,
        get_renderable=lambda: live_view(board),
        refresh_per_second=4,
        redirect_stderr=own_stderr,
        transient=True,
    ):
        yield LiveDisplay(board=board, log_to=sys.stderr)


@dataclass(slots=True, kw_only=True)
class LiveDisplay:
    """Keeps the board that rich draws several times a second."""

    board: ProgressBoard
    log_to: TextIO

    def progress(self, message: Progress) -> None:
        """Takes the message in; the next refresh shows it."""
        self.board.update(message)

    def log(self, line: str) -> None:
        """Writes the line above the live part."""
        _write_line(self.log_to, line)


class PlainDisplay:
    """A line when the gang enters another layer or phase of the run, else every few seconds."""

    def __init__(
        self, *, out: TextIO, log_to: TextIO, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._out, self._log_to, self._now = out, log_to, now
        self._board = ProgressBoard()
        self._shown: tuple[str, int] | None = None
        self._shown_at = 0.0

    def progress(self, message: Progress) -> None:
        """Takes the message in and writes a line if one is due."""
        self._board.update(message)
        overview = self._board.overview()
        if overview is None:
            return
        stage = "" if overview.stage in STAGES_OF_A_LAYER else overview.stage
        state = (stage, overview.layer)
        if state == self._shown and self._now() - self._shown_at < SECONDS_BETWEEN_LINES:
            return
        self._shown, self._shown_at = state, self._now()
        _write_line(self._out, overview_line(overview))

    def log(self, line: str) -> None:
        """Writes the line."""
        _write_line(self._log_to, line)


def live_view(board: ProgressBoard) -> RenderableType:
    """The overall bar and a row a rank."""
    overview = board.overview()
    if overview is None:
        return Text("Starting")
    ranks = board.ranks()
    rows = Table.grid(padding=(0, 2))
    for progress in ranks[:MOST_RANK_ROWS]:
        rows.add_row(*(Text(cell) for cell in rank_cells(progress)))
    parts: list[RenderableType] = [_overall(overview), rows]
    if len(ranks) > MOST_RANK_ROWS:
        parts.append(Text(f"and {len(ranks) - MOST_RANK_ROWS} ranks more"))
    return Group(*parts)


def _overall(overview: Overview) -> Table:
    line = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=1.0, completed=overview.fraction, width=40)
    line.add_row(bar, Text(overview_line(overview)))
    return line


def _write_line(stream: TextIO, line: str) -> None:
    printable = "".join(c if c.isprintable() else "?" for c in line.rstrip("\n"))
    try:
        stream.write(f"{printable}\n")
        stream.flush()
    except OSError:
        stop_writing(stream)

"""What a run looks like: plain lines in a file, a live part on a terminal."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
from rich.console import Console
from typer.testing import CliRunner

from quantfleet_api.progress import Progress
from quantfleet_cli.display import PlainDisplay, live_view
from quantfleet_cli.main import app
from quantfleet_cli.progress_board import ProgressBoard, clock, fraction_done, overview_line

Command = Callable[..., subprocess.CompletedProcess[str]]


def _progress(**fields: object) -> Progress:
    start: dict[str, object] = {"rank": 0, "world_size": 2, "stage": "Calibrating"}
    return Progress.model_validate(start | fields)


def _console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, markup=False, emoji=False, highlight=False), out


@pytest.mark.parametrize(
    ("fields", "fraction"),
    [
        ({}, 0.0),
        ({"layer": 1, "num_layers": 4}, 0.25),
        ({"num_layers": 1, "pass_index": 1, "num_passes": 2, "micro_batch": 1,
          "num_micro_batches": 2}, 0.25),
        ({"num_layers": 1, "pass_index": 2, "num_passes": 2, "micro_batch": 2,
          "num_micro_batches": 2}, 1.0),
        ({"layer": 4, "num_layers": 4, "pass_index": 2, "num_passes": 2, "micro_batch": 2,
          "num_micro_batches": 2}, 1.0),
        ({"stage": "Done"}, 1.0),
    ],
)  # fmt: skip
def test_fraction_counts_layers_and_micro_batches(
    fields: dict[str, object], fraction: float
) -> None:
    assert fraction_done(_progress(**fields)) == fraction


def test_overview_follows_the_slowest_rank_and_never_goes_back() -> None:
    board = ProgressBoard()
    assert board.overview() is None
    board.update(_progress(rank=1, layer=3, num_layers=4, tokens_per_second=10, eta_seconds=5))
    board.update(_progress(rank=0, layer=2, num_layers=4, tokens_per_second=30, eta_seconds=9))

    overview = board.overview()
    assert overview is not None
    assert overview_line(overview) == (
        "Calibrating: layer 2/4, 50 %, 20 tokens/s a rank (2 ranks), ETA 0:09"
    )
    board.update(_progress(rank=0, layer=1, num_layers=4))
    again = board.overview()
    assert again is not None
    assert again.fraction == 0.5


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (192, "3:12"), (3792.4, "1:03:12"), (-1, "0:00")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_plain_lines_come_with_a_layer_or_after_some_seconds() -> None:
    out, time = io.StringIO(), [0.0]
    display = PlainDisplay(out=out, log_to=io.StringIO(), now=lambda: time[0])

    for seconds, fields in [
        (0.0, {"stage": "Planning"}),
        (0.1, {"num_layers": 2}),
        (0.2, {"num_layers": 2, "stage": "Solving"}),
        (0.3, {"num_layers": 2, "layer": 1}),
        (5.2, {"num_layers": 2, "layer": 1}),
        (5.3, {"num_layers": 2, "layer": 1, "stage": "Writing"}),
        (5.4, {"num_layers": 2, "layer": 2, "stage": "Verifying"}),
    ]:
        time[0] = seconds
        display.progress(_progress(**fields))

    assert out.getvalue().splitlines() == [
        "Planning",
        "Calibrating: layer 0/2, 0 %",
        "Calibrating: layer 1/2, 50 %",
        "Writing: layer 1/2, 50 %",
        "Verifying: layer 2/2, 100 %",
    ]


def test_control_characters_of_a_log_do_not_reach_the_terminal() -> None:
    log = io.StringIO()

    PlainDisplay(out=io.StringIO(), log_to=log).log("a\x1b[2Jb\r\n")

    assert log.getvalue() == "a?[2Jb?\n"


def test_live_view_has_a_row_a_rank_and_sums_up_the_rest() -> None:
    board = ProgressBoard()
    console, out = _console()
    console.print(live_view(board))
    for rank in range(20):
        board.update(
            _progress(
                rank=rank, num_layers=4, pass_index=1, num_passes=2, num_micro_batches=8,
                micro_batch=3, tokens_per_second=1234.5, message="[red]odd[/]",
            )
        )  # fmt: skip
    console.print(live_view(board))

    text = out.getvalue()
    assert text.startswith("Starting")
    row = next(line for line in text.splitlines() if line.startswith("rank 15 "))
    assert row.split() == (
        "rank 15 Calibrating layer 1/4 pass 1/2 micro-batch 3/8 1,234 tokens/s [red]odd[/]".split()
    )
    assert "rank 16 " not in text
    assert "and 4 ranks more" in text


REPORT = {"evaluation": {"quantizedPerplexity": 18.75, "ratio": 1.0274}, "seconds": 75.5}

RUN = f"""
def run_job(job, *, volumes, workers, discard_journal, on_progress, on_log):
    for layer in range(3):
        for rank in (0, 1):
            on_progress(Progress(rank=rank, world_size=2, stage="Solving", layer=layer,
                                 num_layers=2, tokens_per_second=100.0, eta_seconds=3.0))
    on_log("a word from rank 1")
    return Outcome(ExitCode.DONE, report={REPORT!r})
"""


def test_output_to_a_file_is_plain_text(quantfleet: Command, arguments: list[str]) -> None:
    done = quantfleet("run", *arguments, engine=RUN)

    assert done.returncode == 0
    assert all(character.isprintable() or character == "\n" for character in done.stdout)
    assert "Solving: layer 1/2, 50 %, 100 tokens/s a rank (2 ranks), ETA 0:03\n" in done.stdout
    assert "ratio" in done.stdout
    assert done.stderr == "a word from rank 1\n"


@pytest.mark.parametrize(("terminal", "live"), [("xterm-256color", True), ("dumb", False)])
def test_output_to_a_terminal(
    program_with: Callable[[str], str],
    environment: Mapping[str, str],
    arguments: list[str],
    terminal: str,
    live: bool,
) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program_with(RUN), "run", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": terminal, "COLUMNS": "120"},
    ) as process:
        os.close(theirs)
        shown = _all_of(ours)
        assert process.wait(timeout=60) == 0

    assert ("\x1b[" in shown) is live
    assert ("rank 1" in shown.replace("from rank 1", "")) is live
    assert "a word from rank 1" in shown
    assert "perplexity, quantized" in shown


def _all_of(terminal: int) -> str:
    """What is written to a terminal until nobody has it open."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so at the end
            break
        if not part:
            break
        parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


def test_plan_as_tables_and_as_json(quantfleet: Command, arguments: list[str]) -> None:
    engine = "describe = lambda job, *, volumes, workers: {'layers': workers, 'refused': None}"
    tables = quantfleet("plan", *arguments, "--workers", "2", engine=engine)
    assert (tables.returncode, tables.stdout.split()) == (0, ["layers", "2"])

    refused = engine.replace("None}", "'disk is full'}")
    as_json = quantfleet("plan", *arguments, "--json", engine=refused)
    assert json.loads(as_json.stdout) == {"layers": None, "refused": "disk is full"}
    assert (as_json.returncode, as_json.stderr) == (64, "refused: disk is full\n")


def test_commands_list_their_options() -> None:
    runner = CliRunner()

    assert "--discard-journal" in runner.invoke(app, ["run", "--help"]).output
    assert "--json" in runner.invoke(app, ["plan", "--help"]).output
    assert runner.invoke(app, ["version"]).output.startswith("quantfleet ")

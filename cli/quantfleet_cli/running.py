"""`quantfleet run`: starts the engine, shows it, and says how it ended."""

from collections.abc import Mapping
from pathlib import Path

from quantfleet_api.errors import ExitCode
from quantfleet_api.spec import QuantizationJob
from quantfleet_cli.display import display_on
from quantfleet_cli.failures import say
from quantfleet_cli.tables import plain_console, show_report
from quantfleet_worker.launch import Outcome, run_job


def run_and_show(
    job: QuantizationJob, *, volumes: Mapping[str, Path], workers: int | None, discard: bool
) -> ExitCode:
    """Runs the job to its end; returns the exit code of the command."""
    console = plain_console()
    with display_on(console) as display:
        outcome = run_job(
            job,
            volumes=volumes,
            workers=workers,
            discard_journal=discard,
            on_progress=display.progress,
            on_log=display.log,
        )
    if outcome.report is not None:
        show_report(outcome.report, outcome.output, console)
    _say_how_it_ended(outcome)
    return outcome.exit_code


def _say_how_it_ended(outcome: Outcome) -> None:
    if outcome.exit_code == ExitCode.INTERRUPTED:
        say(f"interrupted: {outcome.cause}")
    elif outcome.exit_code != ExitCode.DONE:
        say(f"error: {outcome.cause}")
    if outcome.hint:
        say(f"hint: {outcome.hint}")

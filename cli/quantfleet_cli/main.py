"""The commands. The engine is imported inside them, so that help and bad manifests are instant.

Hides how failures become exit codes: see `failures`.
"""

import importlib.metadata
import json
import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quantfleet_api.errors import ExitCode
from quantfleet_cli.failures import failures_as_exit_codes, say

app = typer.Typer(
    name="quantfleet",
    help="Quantize large language models with data-parallel ranks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

LOG_LEVEL_VARIABLE = "QF_LOG_LEVEL"
"""Tells the ranks, which are other processes, what to log."""


class LogLevel(StrEnum):
    """How much of the log to show."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The manifest, a YAML file.")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Ranks to start.")]
Volumes = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="CLAIM=DIR",
        help="The local folder that stands for a claim of the manifest; once for each claim.",
    ),
]


@app.command()
def run(
    job: JobFile,
    workers: Workers = None,
    volume: Volumes = None,
    discard_journal: Annotated[
        bool, typer.Option("--discard-journal", help="Start over instead of going on.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log.")] = LogLevel.WARNING,
) -> None:
    """Quantize a model; goes on where an interrupted run of the same plan stopped."""
    with failures_as_exit_codes():
        _set_log_level(log_level)
        from quantfleet_cli.arguments import read_arguments

        manifest, volumes = read_arguments(job, volume or [], workers=workers)
        from quantfleet_cli.running import run_and_show

        raise typer.Exit(
            run_and_show(manifest, volumes=volumes, workers=workers, discard=discard_journal)
        )


@app.command()
def plan(
    job: JobFile,
    workers: Workers = None,
    volume: Volumes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a run would do, what it would need, and why it would be refused."""
    with failures_as_exit_codes():
        from quantfleet_cli.arguments import read_arguments

        manifest, volumes = read_arguments(job, volume or [], workers=workers)
        from quantfleet_cli.tables import plain_console, show_tree
        from quantfleet_worker.describe import describe

        description = describe(manifest, volumes=volumes, workers=workers)
        refused = description.get("refused")
        if as_json:
            typer.echo(json.dumps(description, indent=2, default=str))
        else:
            show_tree({k: v for k, v in description.items() if k != "refused"}, plain_console())
        if refused is not None:
            say(f"refused: {refused}")
            raise typer.Exit(ExitCode.INVALID_INPUT)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A published folder.")],
) -> None:
    """Check a published folder: digests, sizes, and that every tensor can be decoded."""
    with failures_as_exit_codes():
        from quantfleet_cli.arguments import existing_folder

        path = existing_folder(folder)
        from quantfleet_worker.verify import verify_folder

        problems = verify_folder(path)
        for problem in problems:
            say(f"error: {problem}")
        if problems:
            raise typer.Exit(ExitCode.GATE_NOT_MET)
        typer.echo(f"{path}: complete and unchanged")


@app.command()
def version() -> None:
    """Print the version and the manifests that it reads."""
    typer.echo(f"quantfleet {importlib.metadata.version('quantfleet')} (quantfleet.io/v1alpha1)")


def entry() -> None:
    """The console script: an unknown command or option is invalid input, too."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show must not end a run.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
    except SystemExit as exit_request:
        usage_error = 2  # what the argument parser exits with
        code = exit_request.code
        sys.exit(int(ExitCode.INVALID_INPUT) if code == usage_error else code)


def _set_log_level(level: LogLevel) -> None:
    os.environ[LOG_LEVEL_VARIABLE] = level.value
    logging.basicConfig(level=level.value.upper(), format="%(levelname)s %(name)s %(message)s")

"""How whatever goes wrong in a command becomes one line and an exit code.

Used by every command. A mistake of the user never shows a traceback; a bug of ours always does.
"""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import typer

from quantfleet_api.errors import ExitCode, QuantFleetError


def say(line: str) -> None:
    """Writes one line to stderr, whatever the text holds."""
    try:
        typer.echo(" ".join(line.splitlines()), err=True)
    except OSError:
        stop_writing(sys.stderr)


def stop_writing(stream: TextIO) -> None:
    """Drops what else is written to `stream`, whose reader is gone.

    Otherwise Python would fail again at exit, when it flushes what is left.
    """
    with suppress(OSError, ValueError):  # not a file, or closed
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)


@contextmanager
def failures_as_exit_codes() -> Iterator[None]:
    """Ends the command with the exit code of what is raised inside."""
    try:
        yield
    except QuantFleetError as error:
        say(f"error: {error}")
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        say("error: interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        stop_writing(sys.stdout)
        raise typer.Exit(ExitCode.DONE) from None
    except typer.Exit:
        raise
    except Exception:
        traceback.print_exc()
        say("error: this is a bug in quantfleet, please report it with the lines above")
        raise typer.Exit(ExitCode.BUG) from None

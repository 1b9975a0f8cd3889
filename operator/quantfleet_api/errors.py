"""Exit codes and the errors that carry them: whether to retry is the class.

    QuantFleetError
      InvalidInput      64  the user must change something; never retried
      GateNotMet        65  the result is worse than asked for; never retried
      OutputUnwritable  73  output or work folder full, read-only, over quota
      InputUnreadable   74  model or data cannot be read
      TryAgain          75  a peer was lost, a transfer failed
      Interrupted      130  stopped by the user, what is finished is committed

Anything else that is raised is a bug: exit code 70, with its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a worker's exit means to whoever started it."""

    DONE = 0
    INVALID_INPUT = 64
    GATE_NOT_MET = 65
    BUG = 70
    OUTPUT_UNWRITABLE = 73
    INPUT_UNREADABLE = 74
    TRY_AGAIN = 75
    INTERRUPTED = 130
    KILLED = 137
    TERMINATED = 143


RETRIED = frozenset(
    {ExitCode.BUG, ExitCode.OUTPUT_UNWRITABLE, ExitCode.INPUT_UNREADABLE, ExitCode.TRY_AGAIN}
)
"""Codes that another attempt may cure."""


class QuantFleetError(Exception):
    """A failure with a known cause; the message is one line and needs no traceback."""

    exit_code: ExitCode = ExitCode.BUG


class InvalidInput(QuantFleetError):
    """Manifest, model or data are wrong: `field` must follow `rule`, but is `value`."""

    exit_code = ExitCode.INVALID_INPUT

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field}: {rule}, got {_shown(value)}")

    def __reduce__(self) -> tuple[type["InvalidInput"], tuple[str, object, str]]:
        return InvalidInput, (self.field, self.value, self.rule)


class GateNotMet(QuantFleetError):
    """The result misses a gate of the manifest, or a warning under `warnings: Fail`."""

    exit_code = ExitCode.GATE_NOT_MET


class OutputUnwritable(QuantFleetError):
    """The output or work folder cannot be written."""

    exit_code = ExitCode.OUTPUT_UNWRITABLE


class InputUnreadable(QuantFleetError):
    """Model or data exist but cannot be read."""

    exit_code = ExitCode.INPUT_UNREADABLE


class TryAgain(QuantFleetError):
    """A peer was lost or a transfer failed; the next attempt goes on from the journal."""

    exit_code = ExitCode.TRY_AGAIN


class Interrupted(QuantFleetError):
    """Stopped on request; what is finished is committed."""

    exit_code = ExitCode.INTERRUPTED


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 200 else text[:197] + "..."

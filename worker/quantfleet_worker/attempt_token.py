"""The attempt token: which attempt of which job of a cluster holds the work folder (rule C2).

Pod 0 of an attempt takes the work over and leaves the token, the attempt's other pods wait for it.
A pod that sees the token of a later attempt of its job is a survivor and leaves. Called by `pod`
alone; a run on one machine holds the lock instead. Imports no torch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from pydantic import ValidationError

from quantfleet_api.errors import InvalidInput, TryAgain
from quantfleet_api.plan import Frozen
from quantfleet_worker.work_folder import (
    OutputLocked,
    WorkFolder,
    latest_attempt,
    locked,
    work_path,
)

FILE_NAME = "token.json"
LOCK_SECONDS = 120.0
"""How long the lock of the work folder is waited for: that of a lost node is freed by then."""
LOOK_SECONDS = 0.5
"""Between two looks at a folder that another node writes."""


class Token(Frozen):
    """One attempt of one job; `plan` is the digest of what it works on."""

    job_uid: str
    attempt: int
    plan: str


def leave_token(folder: WorkFolder, token: Token) -> None:
    """Say who holds the work; written after everything that the other pods need."""
    folder.write_bytes(folder.path / FILE_NAME, token.model_dump_json(indent=1).encode())


def refuse_survivors(output: Path, token: Token) -> None:
    """TryAgain where a later attempt of the same job holds the work already."""
    _refuse_survivor(_latest(output)[1], token)


def _refuse_survivor(found: Token | None, token: Token) -> None:
    if found is not None and found.job_uid == token.job_uid and found.attempt > token.attempt:
        raise TryAgain(f"attempt {token.attempt} was followed by attempt {found.attempt}")


def wait_for_attempt(output: Path, token: Token, *, seconds: float) -> WorkFolder:
    """The folder of this very attempt, once its pod 0 has left the token.

    InvalidInput where pod 0 sees other files than this pod: its plan is another one. TryAgain
    where nothing comes in time.
    """
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        folder, found = _latest(output)
        _refuse_survivor(found, token)
        if folder is not None and found is not None and _same_attempt(found, token):
            if found.plan != token.plan:
                rule = f"must be that of pod 0, {found.plan}: all pods must see the same files"
                raise InvalidInput("plan digest of this pod", token.plan, rule)
            return folder
        sleep(LOOK_SECONDS)
    raise TryAgain(f"pod 0 did not begin attempt {token.attempt} within {seconds:.0f} s")


@contextmanager
def briefly_locked(output: Path) -> Iterator[None]:
    """The work folder's lock, for the moment of taking over; waits while another pod has it."""
    deadline = monotonic() + LOCK_SECONDS
    while True:
        try:
            with locked(output):
                yield
                return
        except OutputLocked as error:
            if monotonic() > deadline:
                raise TryAgain(f"{work_path(output)} is locked by another run") from error
        sleep(LOOK_SECONDS)


def _same_attempt(found: Token, token: Token) -> bool:
    return (found.job_uid, found.attempt) == (token.job_uid, token.attempt)


def _latest(output: Path) -> tuple[WorkFolder | None, Token | None]:
    """The attempt that holds the work, and its token if it has left one."""
    folder = latest_attempt(output)
    return folder, None if folder is None else _read(folder)


def _read(folder: WorkFolder) -> Token | None:
    try:
        return Token.model_validate_json((folder.path / FILE_NAME).read_bytes())
    except (OSError, ValidationError):
        return None  # not yet, being replaced, or of a run without a cluster

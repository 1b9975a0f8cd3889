"""The work folder `<output>.work`: every write to it, its lock and its fence.

Used by launcher, engine and journal. A file is written as `<name>.<attempt>.tmp`, flushed to disk
and renamed once to its final name, so a reader sees it whole or not at all.

All that an attempt writes or publishes comes by a rename out of its own folder `attempt-<n>`, and
the next attempt takes the work over by renaming that folder. So an old attempt that wakes up, at
whatever instruction, cannot change anything any more. Imports no torch.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quantfleet_api.errors import InvalidInput, OutputUnwritable, TryAgain

_ATTEMPT = "attempt-"
_CAUSES = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "quota exceeded",
    errno.EROFS: "read-only file system",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.EIO: "input/output error",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.ENAMETOOLONG: "name too long",
}


class OutputLocked(InvalidInput):
    """Another run works on this output now."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write into `OutputUnwritable` that names the path and the cause."""
    try:
        yield
    except OSError as error:
        cause = _CAUSES.get(error.errno or 0, error.strerror or str(error))
        raise OutputUnwritable(f"cannot write {path}: {cause}") from error


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFolder:
    """Paths and writes of one attempt at one output."""

    output: Path
    attempt: int

    @property
    def path(self) -> Path:
        """This attempt's folder in the work folder, beside the output on the same file system."""
        return work_path(self.output) / f"{_ATTEMPT}{self.attempt}"

    @property
    def publishing(self) -> Path:
        """What becomes the output."""
        return self.path / "out"

    def format_folder(self, folder: str, *, several: bool) -> Path:
        """Where a format's files go: the output itself, or a folder in it if there are several."""
        return self.publishing / folder if several else self.publishing

    def sidecar(self, layer: int) -> Path:
        """What the first format cannot round-trip, of one layer."""
        return self.path / "sidecar" / f"{layer}.safetensors"

    def carry_folder(self, layer: int) -> Path:
        """The activations after `layer`."""
        return self.path / "carry" / f"{layer}"

    def carry(self, layer: int, micro_batches: range) -> Path:
        """The activations after `layer` of some micro-batches."""
        name = f"{micro_batches.start}-{micro_batches.stop}.safetensors"
        return self.carry_folder(layer) / name

    def check_fence(self) -> None:
        """Raise if a later attempt has taken over."""
        current = latest_attempt(self.output)
        if current is None:
            raise TryAgain(f"work folder {work_path(self.output)} was taken away")
        if current != self:
            raise TryAgain(f"attempt {self.attempt} was followed by attempt {current.attempt}")

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """As the function `writing`, but what fails because of a later attempt is TryAgain."""
        try:
            with writing(path):
                yield
        except OutputUnwritable:
            self.check_fence()
            raise

    @contextmanager
    def new_file(self, path: Path) -> Iterator[BinaryIO]:
        """A file that appears under its name, whole and durable, when the block ends."""
        own = path.is_relative_to(self.path)
        temporary = (path if own else self.path / path.name).with_name(
            f"{path.name}.{self.attempt}.tmp"
        )
        with self.writing(path):
            if own:
                self._make_folder(path.parent)
            try:
                with temporary.open("wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(path)
                sync_folder(path.parent)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def _make_folder(self, path: Path) -> None:
        """Make a folder in this attempt's, but never that one itself again."""
        if path != self.path and not path.is_dir():
            self._make_folder(path.parent)
            path.mkdir(exist_ok=True)

    def write_bytes(self, path: Path, content: bytes) -> tuple[str, int]:
        """Write a small file; its SHA-256 in hex and its size."""
        with self.new_file(path) as file:
            file.write(content)
        return hashlib.sha256(content).hexdigest(), len(content)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder of files, of the work folder, if it is there.

        Step by step by name: what walks a folder by its descriptor (shutil.rmtree) would go on in
        it after a later attempt has taken it over.
        """
        with suppress(FileNotFoundError):
            if not path.is_dir():
                path.unlink()
                return
            for entry in list(path.iterdir()):
                entry.unlink()
            path.rmdir()


def work_path(output: Path) -> Path:
    """`<output>.work`."""
    return output.with_name(output.name + ".work")


def latest_attempt(output: Path) -> WorkFolder | None:
    """The attempt that holds the work, None before the first."""
    numbers = [
        int(entry.name.removeprefix(_ATTEMPT))
        for entry in work_path(output).glob(f"{_ATTEMPT}*")
        if entry.name.removeprefix(_ATTEMPT).isdecimal()
    ]
    return WorkFolder(output=output, attempt=max(numbers)) if numbers else None


def begin_attempt(output: Path, *, discard: bool = False) -> WorkFolder:
    """Take over the work as the next attempt, or only the number. The caller holds the lock."""
    path = work_path(output)
    before = latest_attempt(output)
    folder = WorkFolder(output=output, attempt=1 if before is None else before.attempt + 1)
    with writing(path):
        if before is None:
            folder.path.mkdir()
        else:
            before.path.rename(folder.path)
        sync_folder(path)
        for stale in path.glob(f"{_ATTEMPT}*"):
            if stale != folder.path:
                shutil.rmtree(stale)
        for entry in folder.path.iterdir() if discard else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for unfinished in folder.path.rglob("*.tmp"):
            unfinished.unlink()
    return folder


def remove_work(output: Path) -> None:
    """The work is done: its folder goes. The caller holds the lock."""
    shutil.rmtree(work_path(output), ignore_errors=True)


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Hold the work folder's lock for the block's life; it is freed when this process dies.

    Raises InvalidInput when another run holds it. A folder made here is removed again if nothing
    was put into it.
    """
    path = work_path(output)
    file = _open_lock(output, path)
    try:
        yield
    finally:
        # while the lock is held: whoever waits for it looks again afterwards
        if path.is_dir() and [entry.name for entry in path.iterdir()] == ["lock"]:
            remove_work(output)
        file.close()


def _open_lock(output: Path, path: Path) -> BinaryIO:
    while True:
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            try:
                file = (path / "lock").open("ab")
            except FileNotFoundError:
                continue  # the run that held it is removing the folder
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise OutputLocked(
                "spec.output", str(output), "must not be written by another run at the same time"
            ) from None
        try:
            if os.stat(path / "lock").st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except FileNotFoundError:
            pass
        file.close()  # the run that held it has finished and removed the folder: look again

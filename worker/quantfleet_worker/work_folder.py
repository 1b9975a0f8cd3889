"""The work folder `<output>.work`: every write to it, its lock and its fence.

Used by launcher, engine and journal. A file is written as `<name>.<attempt>.tmp`, flushed to disk
and renamed once to its final name, so a reader sees it whole or not at all; an attempt that has
been followed by another may write nothing more (`check_fence`). Imports no torch.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quantfleet_api.errors import InvalidInput, OutputUnwritable, TryAgain

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
        """The work folder, beside the output on the same file system."""
        return work_path(self.output)

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

    def carry(self, layer: int, leaf: int) -> Path:
        """The activations after `layer` of one leaf's micro-batches."""
        return self.path / "carry" / f"{layer}" / f"{leaf}.safetensors"

    def check_fence(self) -> None:
        """Raise if a later attempt has taken over."""
        try:
            current = int((self.path / "attempt").read_text())
        except (OSError, ValueError) as error:
            raise TryAgain(f"work folder {self.path} was taken away") from error
        if current != self.attempt:
            raise TryAgain(f"attempt {self.attempt} was followed by attempt {current}")

    @contextmanager
    def new_file(self, path: Path) -> Iterator[BinaryIO]:
        """A file that appears under its name, whole and durable, when the block ends."""
        temporary = path.with_name(f"{path.name}.{self.attempt}.tmp")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
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

    def write_bytes(self, path: Path, content: bytes) -> tuple[str, int]:
        """Write a small file; its SHA-256 in hex and its size."""
        with self.new_file(path) as file:
            file.write(content)
        return hashlib.sha256(content).hexdigest(), len(content)

    def remove(self, path: Path) -> None:
        """Remove a file or folder of the work folder, if it is there."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def work_path(output: Path) -> Path:
    """`<output>.work`."""
    return output.with_name(output.name + ".work")


def begin_attempt(output: Path) -> WorkFolder:
    """Take over the work folder as the next attempt. The caller holds the lock."""
    path = work_path(output)
    try:
        previous = int((path / "attempt").read_text())
    except (FileNotFoundError, ValueError):
        previous = 0
    folder = WorkFolder(output=output, attempt=previous + 1)
    folder.write_bytes(path / "attempt", str(folder.attempt).encode())
    for stale in path.rglob("*.tmp"):
        stale.unlink(missing_ok=True)
    return folder


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
        file.close()
        with_only_lock = path.is_dir() and [entry.name for entry in path.iterdir()] == ["lock"]
        if with_only_lock:
            shutil.rmtree(path, ignore_errors=True)


def _open_lock(output: Path, path: Path) -> BinaryIO:
    while True:
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            file = (path / "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InvalidInput(
                "spec.output", str(output), "must not be written by another run at the same time"
            ) from None
        try:
            if os.stat(path / "lock").st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except FileNotFoundError:
            pass
        file.close()  # the run that held it has finished and removed the folder: look again

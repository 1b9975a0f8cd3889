"""Reading weights: byte ranges into memory of our own, and the next layer in the background.

Used by the engine and by verification through `source`. Tensors are never views of a memory map:
the alignment of a file's data differs from file to file, and matrix kernels may choose by it.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch
from torch import Tensor

from quantfleet_api.errors import InputUnreadable, InvalidInput
from quantfleet_api.plan import SourceTensor
from quantfleet_worker.schemes import TORCH_DTYPES

_READ_BYTES = 1 << 26  # of one system call: Linux moves at most 2 GiB in one
ALIGNMENT = 64  # bytes, what torch's CPU allocator gives


def _own_memory(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


class Reader:
    """Reads tensors of one folder by byte range; safe to use from several threads."""

    def __init__(
        self,
        folder: Path,
        tensors: Mapping[str, SourceTensor],
        *,
        check_finite: bool = False,
        hashed: Container[str] = (),
        known_hashes: Mapping[str, str] | None = None,
    ) -> None:
        """`check_finite` refuses NaN and infinity. The content of tensors in `hashed` fills
        `hashes`; one in `known_hashes` (of an earlier run), or read twice, must not change."""
        self.bytes_read = 0
        self.hashes: dict[str, str] = dict(known_hashes or {})
        self._folder = folder
        self.tensors = tensors
        self._check_finite = check_finite
        self._hashed = hashed
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()

    def read(
        self, names: Iterable[str], *, memory: Callable[[int], Tensor] = _own_memory
    ) -> dict[str, Tensor]:
        """The named tensors, in memory that nothing else shares.

        `memory` gives a place (uint8, aligned) for so many bytes, in the order of `names`.
        """
        return {name: self._read_tensor(self.tensors[name], memory) for name in names}

    def close(self) -> None:
        """Closes the files; the reader may be used again."""
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_tensor(self, source: SourceTensor, memory: Callable[[int], Tensor]) -> Tensor:
        raw = memory(source.num_bytes)
        assert raw.data_ptr() % ALIGNMENT == 0
        view = raw.numpy().data
        try:
            _fill_(view, self._file(source.file), source.start)
        except OSError as error:
            path = self._folder / source.file
            raise InputUnreadable(f"{path}: {source.name}: {error.strerror}") from error
        with self._lock:
            self.bytes_read += source.num_bytes
        if source.name in self._hashed:
            self._compare(source, hashlib.sha256(view).hexdigest())
        tensor = raw.view(TORCH_DTYPES[source.dtype]).reshape(source.shape)
        if self._check_finite:
            _require_finite(source, tensor)
        return tensor

    def _file(self, name: str) -> int:
        with self._lock:
            if name not in self._files:
                self._files[name] = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
            return self._files[name]

    def _compare(self, source: SourceTensor, digest: str) -> None:
        with self._lock:
            known = self.hashes.setdefault(source.name, digest)
        if known != digest:
            field = f"spec.model.source: {source.file}: {source.name}"
            raise InvalidInput(field, digest, f"content must stay what it was, {known}")


class Reads(Protocol):
    """What reads sets of tensors: a reader, or one that shares with other ranks."""

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The named tensors."""


class Prefetcher:
    """Reads one set of tensors ahead, in a thread of its own."""

    def __init__(self, reader: Reads) -> None:
        self._reader = reader
        self._thread: threading.Thread | None = None
        self._result: Future[dict[str, Tensor]] = Future()

    def start(self, names: Iterable[str]) -> None:
        """Begins to read `names`; what was begun before must have been taken."""
        assert self._thread is None, "take() what was started first"
        self._result = Future()
        # A daemon: storage that hangs must not keep a rank alive that has to stop.
        self._thread = threading.Thread(
            target=_complete, args=(self._result, self._reader, tuple(names)), daemon=True
        )
        self._thread.start()

    def take(self) -> dict[str, Tensor]:
        """Waits for what was started and returns it, or raises what went wrong."""
        assert self._thread is not None, "nothing was started"
        self._thread.join()
        self._thread = None
        result, self._result = self._result, Future()  # so that no reference to weights stays
        return result.result()

    def close(self) -> None:
        """Waits for the thread and drops what it read."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._result = Future()


def _complete(result: Future[dict[str, Tensor]], reader: Reads, names: tuple[str, ...]) -> None:
    try:
        result.set_result(reader.read(names))
    except BaseException as error:  # raised again by take(), in the thread that decides
        result.set_exception(error)


def _fill_(view: memoryview, file: int, start: int) -> None:
    """Fills `view` with the file's bytes from `start` on."""
    done = 0
    while done < len(view):
        count = os.preadv(file, [view[done : done + _READ_BYTES]], start + done)
        if count == 0:
            raise OSError(0, f"the file ends {len(view) - done} bytes early")
        done += count


def _require_finite(source: SourceTensor, tensor: Tensor) -> None:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    # Minimum and maximum carry NaN and infinity, and need no copy of the tensor.
    if bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all()):
        return
    count = int((~torch.isfinite(tensor)).sum())
    field = f"spec.model.source: {source.file}: {source.name}"
    raise InvalidInput(field, f"{count} that are not", "weights must be finite")

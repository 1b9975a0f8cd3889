"""Weights of a pod in memory that its ranks share, so that each byte is read from storage once.

Called by the engine and by the evaluation. The ranks of a pod take turns: of each set of tensors,
each rank reads its share into a file that exists in memory only, and maps the shares of the others.
Such a file has no name: it needs no room in /dev/shm and is gone with the last process that has it,
however that process ends. The mappings are private, so what a rank changes stays its own.
"""

import json
import mmap
import os
from collections.abc import Container, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from quantfleet_api.errors import TryAgain
from quantfleet_api.plan import SourceTensor
from quantfleet_worker.exchange import Exchange
from quantfleet_worker.reading import ALIGNMENT, Reader
from quantfleet_worker.schemes import TORCH_DTYPES

FILE_NAME = "quantfleet-weights"  # what /proc shows
CAN_SHARE = hasattr(os, "memfd_create")
"""Elsewhere than on Linux every rank reads for itself; the report's counts say so."""


class PodReader:
    """Reads sets of tensors together with the other `members`: all ask for the same, in one order.

    `name` keeps the sets of several readers of one gang apart. Tensors in `twice` are asked for in
    two sets, and stay in memory from the first to the second.
    """

    def __init__(
        self,
        reader: Reader,
        exchange: Exchange,
        members: Sequence[int],
        *,
        name: str,
        twice: Container[str] = (),
    ) -> None:
        alone = not CAN_SHARE or exchange.rank not in members
        self._members = [exchange.rank] if alone else list(members)
        self._reader, self._exchange, self._name = reader, exchange, name
        self._twice, self._kept = twice, dict[str, Tensor]()
        self._sequence = 0
        self._file: int | None = None  # of the set before, until all have mapped it

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The named tensors; what is changed in them, no other rank sees."""
        names = tuple(names)
        known = {name: self._kept.pop(name) for name in names if name in self._kept}
        found = self._read([name for name in names if name not in known])
        self._kept |= {name: found[name] for name in found if name in self._twice}
        return {name: known[name] if name in known else found[name] for name in names}

    def _read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Read from storage, each tensor by one of the members.

        1. Read the own share, and tell the others where it lies.
        2. Map theirs, each as soon as it is told.
        """
        if len(self._members) == 1 or not names:
            return self._reader.read(names)
        self._close_file()
        self._sequence += 1
        sizes = {name: self._reader.tensors[name].num_bytes for name in names}
        shares = split(sizes, len(self._members), first=self._sequence)
        found: dict[str, Tensor] = {}
        for member, share in zip(self._members, shares, strict=True):
            if member == self._exchange.rank:
                self._file = self._write(share)  # 1
                found |= self._views(self._file, share)
                self._exchange.put(self._key(member), _address(self._file))
        for member, share in zip(self._members, shares, strict=True):
            if member != self._exchange.rank and share:
                found |= self._take(member, share)  # 2
        if self._exchange.tick(self._key("taken")) == len(self._members):
            self._exchange.put(self._key("all"), "1")
        return found

    def close(self) -> None:
        """Give back the memory of the last set, once all have mapped it, and what was kept."""
        self._kept.clear()
        self._close_file()

    def _key(self, what: object) -> str:
        """Of this pod alone: other pods of the gang use the same store."""
        return f"{self._name}-{self._members[0]}/{self._sequence}/{what}"

    def _write(self, share: Sequence[str]) -> int:
        file = os.memfd_create(FILE_NAME)
        offsets, total = layout(share, self._reader.tensors)
        os.ftruncate(file, max(total, 1))
        with_all = mmap.mmap(file, max(total, 1))
        places = iter([offsets[name] for name in share])

        def memory(num_bytes: int) -> Tensor:
            return _tensor(with_all, next(places), num_bytes)

        self._reader.read(share, memory=memory)
        return file

    def _take(self, member: int, share: Sequence[str]) -> dict[str, Tensor]:
        address = json.loads(self._exchange.get(self._key(member)))
        try:
            file = os.open(f"/proc/{address['process']}/fd/{address['file']}", os.O_RDONLY)
        except OSError as error:
            raise TryAgain(f"rank {member}: what it read is gone: {error.strerror}") from error
        try:
            if os.fstat(file).st_ino != address["inode"]:
                raise TryAgain(f"rank {member}: what it read is gone")
            return self._views(file, share)
        finally:
            os.close(file)

    def _views(self, file: int, share: Sequence[str]) -> dict[str, Tensor]:
        offsets, total = layout(share, self._reader.tensors)
        mapped = mmap.mmap(file, max(total, 1), access=mmap.ACCESS_COPY)
        return {name: _view(mapped, offsets[name], self._reader.tensors[name]) for name in share}

    def _close_file(self) -> None:
        """Let the set before go, once nobody needs to find it any more."""
        if self._file is not None:
            self._exchange.get(self._key("all"))
            os.close(self._file)
            self._file = None


def split(sizes: Mapping[str, int], parts: int, *, first: int) -> list[list[str]]:
    """Shares of about equal bytes, the largest tensor first; the turn begins at part `first`."""
    shares: list[list[str]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        part = min(range(parts), key=lambda index: (loads[index], (index - first) % parts))
        shares[part].append(name)
        loads[part] += sizes[name]
    return shares


def layout(share: Sequence[str], tensors: Mapping[str, SourceTensor]) -> tuple[dict[str, int], int]:
    """Where each tensor of a share lies in its file, and how long the file is; in bytes."""
    offsets, end = {}, 0
    for name in share:
        offsets[name] = end
        end += -(-tensors[name].num_bytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def _address(file: int) -> str:
    where = {"process": os.getpid(), "file": file, "inode": os.fstat(file).st_ino}
    return json.dumps(where)


def _tensor(mapped: mmap.mmap, offset: int, num_bytes: int) -> Tensor:
    """Bytes of a mapping, which lives as long as the tensor does."""
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mapped, dtype=torch.uint8, count=num_bytes, offset=offset)


def _view(mapped: mmap.mmap, offset: int, source: SourceTensor) -> Tensor:
    raw = _tensor(mapped, offset, source.num_bytes)
    return raw.view(TORCH_DTYPES[source.dtype]).reshape(source.shape)

"""Safetensors files whose every byte follows from the plan and the tensors.

Planning splits tensors into files and asks for their sizes; the engine writes them. The layout is
the one that the safetensors library writes (its header order, compact JSON, spaces up to a multiple
of 8 bytes), but it is streamed: a file is never held in memory and is hashed while it is written.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import BinaryIO

import torch
from torch import Tensor

from quantfleet_api.plan import DType, FilePlan, TensorMeta
from quantfleet_worker.schemes import TORCH_DTYPES

_LIBRARY_ORDER: tuple[DType, ...] = (
    "I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL",
)  # fmt: skip
"""Wide dtypes first: then every tensor starts at a multiple of its item size, which readers that
map the file rely on."""


def num_bytes(tensor: TensorMeta) -> int:
    """Size of the tensor's data."""
    return math.prod(tensor.shape) * TORCH_DTYPES[tensor.dtype].itemsize


def header_order(tensors: Sequence[TensorMeta]) -> tuple[TensorMeta, ...]:
    """The tensors in the order in which a file holds them."""
    return tuple(sorted(tensors, key=lambda t: (_LIBRARY_ORDER.index(t.dtype), t.name)))


def split_into_files(
    tensors: Sequence[TensorMeta], max_bytes: int
) -> tuple[tuple[TensorMeta, ...], ...]:
    """Cut `tensors`, in the order given, into files of at most `max_bytes` of data each.

    A tensor that is larger has a file of its own. Within a file tensors are in header order.
    """
    files: list[list[TensorMeta]] = []
    room = 0
    for tensor in tensors:
        size = num_bytes(tensor)
        if not files or size > room:
            files.append([])
            room = max_bytes
        files[-1].append(tensor)
        room -= size
    return tuple(header_order(file) for file in files)


def header(file: FilePlan) -> bytes:
    """The file's first bytes: length of the JSON (uint64), JSON, padding."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in file.tensors:
        assert start % TORCH_DTYPES[tensor.dtype].itemsize == 0, "tensors are not in header order"
        end = start + num_bytes(tensor)
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def file_size(file: FilePlan) -> int:
    """Bytes of the file, header included, known before any tensor is."""
    return len(header(file)) + sum(num_bytes(tensor) for tensor in file.tensors)


def serialize(tensors: Mapping[str, Tensor], file: FilePlan) -> tuple[bytes, Iterator[memoryview]]:
    """The header, and one buffer a tensor in header order; no tensor's bytes are copied on a CPU.

    `tensors` may hold more than the file does; what the file names must be as it was planned.
    """
    for meta in file.tensors:
        tensor = tensors[meta.name]
        found = (tensor.dtype, tuple(tensor.shape))
        planned = (TORCH_DTYPES[meta.dtype], meta.shape)
        assert found == planned, f"{meta.name} is {found}, planned as {planned}"
    return header(file), (_bytes_of(tensors[meta.name]) for meta in file.tensors)


def write(out: BinaryIO, file: FilePlan, tensors: Mapping[str, Tensor]) -> tuple[str, int]:
    """Write the file to `out`; return the SHA-256 (hex) and the number of bytes written."""
    digest = hashlib.sha256()
    size = stream(out, file, tensors, seen=digest.update)
    return digest.hexdigest(), size


def stream(
    out: BinaryIO,
    file: FilePlan,
    tensors: Mapping[str, Tensor],
    *,
    seen: Callable[[bytes | memoryview], object] = len,
) -> int:
    """Write the file to `out` and return its size; `seen` is shown each piece on the way."""
    first, buffers = serialize(tensors, file)
    size = 0
    pieces: Iterator[bytes | memoryview] = chain([first], buffers)
    for piece in pieces:
        seen(piece)
        size += out.write(piece)
    assert size == file_size(file), "a buffered binary file writes all it is given"
    return size


def index_json(files: Sequence[FilePlan]) -> bytes:
    """The index of a checkpoint of several files: which file holds which tensor."""
    tensors = [(tensor, file.name) for file in files for tensor in file.tensors]
    index = {
        "metadata": {"total_size": sum(num_bytes(tensor) for tensor, _ in tensors)},
        "weight_map": {tensor.name: name for tensor, name in tensors},
    }
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def numbered_names(stem: str, num_files: int) -> tuple[str, ...]:
    """`stem`.safetensors for one file, else the numbered names that checkpoints use."""
    if num_files == 1:
        return (f"{stem}.safetensors",)
    return tuple(f"{stem}-{i:05d}-of-{num_files:05d}.safetensors" for i in range(1, num_files + 1))


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data

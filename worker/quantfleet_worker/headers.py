"""safetensors headers: where each tensor of a file lies, checked so that reading cannot surprise.

Called by `source`. The layout is the safetensors format's: 8 bytes with the header's length
(little endian), the header (a JSON object), then the data; offsets count from the data's start.
"""

import math
import os
from pathlib import Path
from typing import Any, get_args

from quantfleet_api.errors import InputUnreadable, InvalidInput
from quantfleet_api.plan import DType, SourceTensor
from quantfleet_worker.json_text import json_object

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000  # the limit of the safetensors library

DTYPE_BYTES: dict[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
assert DTYPE_BYTES.keys() == set(get_args(DType))


def read_header(folder: Path, name: str, *, field: str) -> tuple[bytes, tuple[SourceTensor, ...]]:
    """The raw header of file `name` and its tensors in the order of their bytes.

    InvalidInput (naming `field` and the file) where the safetensors library would refuse the file.
    """
    field = f"{field}: {name}"
    size, raw = _read_raw(folder / name, field=field)
    entries = json_object(raw[LENGTH_BYTES:], field=field)
    entries.pop("__metadata__", None)
    data_start = len(raw)
    tensors = [
        _tensor(tensor, entry, file=name, data_start=data_start, field=field)
        for tensor, entry in entries.items()
    ]
    # An empty tensor starts where the next one does, so it must sort before it.
    tensors.sort(key=lambda tensor: (tensor.start, tensor.num_bytes))
    _check_layout(tensors, data_start=data_start, size=size, field=field)
    return raw, tuple(tensors)


def _read_raw(path: Path, *, field: str) -> tuple[int, bytes]:
    """Size of the file, and its length field with the header."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(LENGTH_BYTES)
            length = int.from_bytes(first, "little")
            if len(first) < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MOST_HEADER_BYTES):
                raise InvalidInput(
                    field,
                    f"{size} bytes, header of {length}",
                    "must be a whole safetensors file (truncated, or not safetensors)",
                )
            return size, first + file.read(length)
    except FileNotFoundError as error:
        raise InvalidInput(field, "no such file", "must exist") from error
    except OSError as error:
        raise InputUnreadable(f"{path}: {error.strerror}") from error


def _tensor(name: str, entry: Any, *, file: str, data_start: int, field: str) -> SourceTensor:
    field = f"{field}: {name}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise InvalidInput(field, entry, "must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in DTYPE_BYTES:
        raise InvalidInput(field, dtype, f"dtype must be one of {', '.join(sorted(DTYPE_BYTES))}")
    if not _counts(shape):
        raise InvalidInput(field, shape, "shape must be a list of sizes")
    if not _counts(offsets) or len(offsets) != 2:
        raise InvalidInput(field, offsets, "data_offsets must be two offsets")
    num_bytes = offsets[1] - offsets[0]
    if num_bytes != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise InvalidInput(field, f"{num_bytes} bytes", f"must be {dtype} of shape {shape}")
    return SourceTensor(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        file=file,
        start=data_start + offsets[0],
        num_bytes=num_bytes,
    )


def _counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_layout(tensors: list[SourceTensor], *, data_start: int, size: int, field: str) -> None:
    """Tensors must cover the data once: no hole, no overlap, nothing missing at the end."""
    end = data_start
    for tensor in tensors:
        if tensor.start != end:
            rule = f"must start at byte {end}, where the tensor before it ends"
            raise InvalidInput(f"{field}: {tensor.name}", tensor.start, rule)
        end += tensor.num_bytes
    if end != size:
        rule = f"must have the {end} bytes that its header names (truncated or overwritten)"
        raise InvalidInput(field, f"{size} bytes", rule)

"""Checkpoints of activations: what flows between two layers, as immutable files, one a rank.

Written by `commit` in the background, read by `resume` with whatever number of ranks the next
attempt has. They are large and written once a layer, so their content is guarded by a checksum
that runs at memory speed (a wrapping sum of 64-bit words, each weighted by its tensor's place)
instead of a cryptographic hash: it finds what disks do, not what an enemy does. Published files
keep their SHA-256.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from quantfleet_api.errors import InputUnreadable
from quantfleet_api.plan import FilePlan, TensorMeta
from quantfleet_worker.formats import safetensors_file
from quantfleet_worker.headers import read_header
from quantfleet_worker.reading import Reader
from quantfleet_worker.schemes import TORCH_DTYPES
from quantfleet_worker.work_folder import WorkFolder

_CHECKSUMS = "checksums"


def write_activations(
    folder: WorkFolder, layer: int, carry: Mapping[int, Tensor], own: range
) -> dict[str, int]:
    """Write the micro-batches `own` of `carry` as one file; its name and its size in bytes."""
    if not own:
        return {}
    tensors = {str(index): carry[index] for index in own}
    tensors[_CHECKSUMS] = torch.tensor([checksum(carry[index], index) for index in own])
    path = folder.carry(layer, own)
    with folder.new_file(path) as out:
        size = safetensors_file.stream(out, plain_file(path.name, tensors), tensors)
    return {path.name: size}


def read_activations(
    folder: WorkFolder, layer: int, files: Mapping[str, int], own: range
) -> dict[int, Tensor]:
    """The micro-batches `own`, out of the files (name -> bytes) that may hold them."""
    found: dict[int, Tensor] = {}
    for name in files:
        start, stop = (int(bound) for bound in Path(name).stem.split("-"))
        wanted = range(max(start, own.start), min(stop, own.stop))
        if wanted:
            found |= _read(folder.carry(layer, range(start, stop)), files[name], start, wanted)
    assert len(found) == len(own), "the files of a checkpoint hold every micro-batch once"
    return found


def _read(path: Path, num_bytes: int, start: int, wanted: range) -> dict[int, Tensor]:
    size = path.stat().st_size if path.is_file() else -1
    if size != num_bytes:
        raise InputUnreadable(f"{path}: has {size} bytes, {num_bytes} were written")
    _, metas = read_header(path.parent, path.name, field=str(path.parent))
    with Reader(path.parent, {meta.name: meta for meta in metas}) as reader:
        tensors = reader.read([_CHECKSUMS, *(str(index) for index in wanted)])
    known = tensors.pop(_CHECKSUMS).tolist()
    for index in wanted:
        if checksum(tensors[str(index)], index) != known[index - start]:
            raise InputUnreadable(f"{path}: content is not what was written")
    return {index: tensors[str(index)] for index in wanted}


def checksum(tensor: Tensor, place: int) -> int:
    """A signed 64-bit number from a tensor's bytes and its place among its like."""
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    whole = len(raw) // 8 * 8
    total = int(raw[:whole].view(torch.int64).sum()) + int(raw[whole:].sum())
    return _wrapped((total + len(raw)) * (2 * place + 1))


def _wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def plain_file(name: str, tensors: Mapping[str, Tensor]) -> FilePlan:
    """A file that holds just these tensors."""
    return FilePlan(name=name, tensors=safetensors_file.header_order(_metas(tensors)))


def _metas(tensors: Mapping[str, Tensor]) -> Sequence[TensorMeta]:
    names = {dtype: name for name, dtype in TORCH_DTYPES.items()}
    return [
        TensorMeta(name=key, dtype=names[tensor.dtype], shape=tuple(tensor.shape))
        for key, tensor in tensors.items()
    ]

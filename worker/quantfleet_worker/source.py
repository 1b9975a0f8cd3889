"""A Hugging Face checkpoint folder: what is in it, found without reading a single weight.

Called by planning (`Checkpoint.open`) and by the engine, which reads through `Reader` and
`Prefetcher` (in `reading`). Hides how a checkpoint is split over files.
"""

import fnmatch
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantfleet_api.errors import InputUnreadable, InvalidInput
from quantfleet_api.plan import SourceTensor
from quantfleet_worker.headers import read_header
from quantfleet_worker.json_text import json_object
from quantfleet_worker.reading import Prefetcher, Reader

__all__ = ["Checkpoint", "Prefetcher", "Reader"]

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

SIDE_FILES = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "LICEN[CS]E*",
    "COPYING*",
    "NOTICE*",
    "USE_POLICY*",
)
"""Files that belong to a model beside config and weights; they are copied byte for byte."""

_WEIGHT_LIKE = (
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.npz"),
    *("*.bin.index.json", "*.safetensors"),
)
_FIELD = "spec.model.source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files exist in full and whose tensors are all accounted for."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, SourceTensor]  # by name, in the order of files and bytes
    weight_files: tuple[str, ...]
    side_files: tuple[str, ...]  # generation config, tokenizer, templates, licence; sorted
    digest: str  # SHA-256 of config, side files, index and every header; never of weights

    @staticmethod
    def open(folder: Path) -> "Checkpoint":
        """Reads config, index and headers; InvalidInput says what is missing or broken."""
        try:
            return _open(folder)
        except OSError as error:
            raise InputUnreadable(f"{error.filename or folder}: {error.strerror}") from error


def _open(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise InvalidInput(_FIELD, folder, "must be an existing folder")
    if not (folder / CONFIG).is_file():
        raise InvalidInput(_FIELD, folder, f"the folder must hold a {CONFIG}")
    config_bytes = _read(folder / CONFIG)
    config = json_object(config_bytes, field=f"{_FIELD}: {CONFIG}")
    index_bytes, mapped = _weight_map(folder)
    weight_files = (SINGLE,) if mapped is None else tuple(sorted(set(mapped.values())))
    headers = {name: read_header(folder, name, field=_FIELD) for name in weight_files}
    tensors = _unique(tensor for _, found in headers.values() for tensor in found)
    if mapped is not None:
        _check_index(mapped, tensors)
    side_files = _side_files(folder)
    parts = [(CONFIG, config_bytes), (INDEX, index_bytes)]
    parts += [(name, _read(folder / name)) for name in side_files]
    parts += [(name, raw) for name, (raw, _) in headers.items()]
    return Checkpoint(
        folder=folder,
        config=config,
        tensors=tensors,
        weight_files=weight_files,
        side_files=side_files,
        digest=_digest(parts),
    )


def _weight_map(folder: Path) -> tuple[bytes, dict[str, str] | None]:
    """The index's bytes and its tensor -> file; (b"", None) for a single file."""
    single, index = (folder / SINGLE).is_file(), (folder / INDEX).is_file()
    if single and index:
        rule = f"must hold {SINGLE} or {INDEX}, not both"
        raise InvalidInput(_FIELD, folder, rule)
    if single:
        return b"", None
    if not index:
        found = _weight_like(folder) or "no weights"
        raise InvalidInput(_FIELD, found, f"weights must be safetensors: {SINGLE} or {INDEX}")
    data = _read(folder / INDEX)
    field = f"{_FIELD}: {INDEX}: weight_map"
    mapped = json_object(data, field=f"{_FIELD}: {INDEX}").get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise InvalidInput(field, mapped, "must give the file of each tensor")
    for tensor, name in mapped.items():
        plain = isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors")
        if not plain:
            raise InvalidInput(f"{field}: {tensor}", name, "must be a .safetensors file name")
    return data, mapped


def _weight_like(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    return ", ".join(n for n in names if any(fnmatch.fnmatch(n, p) for p in _WEIGHT_LIKE))


def _unique(found: Iterable[SourceTensor]) -> dict[str, SourceTensor]:
    tensors: dict[str, SourceTensor] = {}
    for tensor in found:
        if tensor.name in tensors:
            files = f"{tensors[tensor.name].file} and {tensor.file}"
            raise InvalidInput(f"{_FIELD}: {tensor.name}", files, "must be in one file only")
        tensors[tensor.name] = tensor
    return tensors


def _check_index(mapped: dict[str, str], tensors: dict[str, SourceTensor]) -> None:
    for name, file in mapped.items():
        found = tensors[name].file if name in tensors else "no file"
        if found != file:
            rule = f"must be in {file}, where {INDEX} puts it"
            raise InvalidInput(f"{_FIELD}: {name}", found, rule)
    for name, tensor in tensors.items():
        if name not in mapped:
            raise InvalidInput(f"{_FIELD}: {tensor.file}", name, f"must be listed in {INDEX}")


def _side_files(folder: Path) -> tuple[str, ...]:
    found = {path for pattern in SIDE_FILES for path in folder.glob(pattern) if path.is_file()}
    return tuple(sorted(path.relative_to(folder).as_posix() for path in found))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:  # an error while reading does not name the file by itself
        raise InputUnreadable(f"{path}: {error.strerror}") from error


def _digest(parts: Iterable[tuple[str, bytes]]) -> str:
    """SHA-256 over names and contents, each with its length, so that no two lists look alike."""
    total = hashlib.sha256()
    for name, content in parts:
        for piece in (name.encode(), content):
            total.update(len(piece).to_bytes(8, "little"))
            total.update(piece)
    return total.hexdigest()

"""Reading back the safetensors files that this project wrote, checked against their digests."""

import hashlib
from pathlib import Path

from torch import Tensor

from quantfleet_api.errors import InputUnreadable
from quantfleet_worker.headers import read_header
from quantfleet_worker.reading import Reader

_CHUNK_BYTES = 1 << 22


def read_file(folder: Path, name: str, *, sha256: str | None = None) -> dict[str, Tensor]:
    """All tensors of one file, in memory of their own."""
    if sha256 is not None and file_digest(folder / name) != sha256:
        raise InputUnreadable(f"{folder / name}: content is not what was written")
    _, metas = read_header(folder, name, field=str(folder))
    with Reader(folder, {meta.name: meta for meta in metas}) as reader:
        return reader.read([meta.name for meta in metas])


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hex."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InputUnreadable(f"{path}: {error.strerror}") from error
    return digest.hexdigest()

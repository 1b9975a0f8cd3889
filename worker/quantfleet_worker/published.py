"""The digest manifest of a published folder: which files it has, their sizes and SHA-256.

The engine writes it as the last file before a folder is published, from digests taken while each
file was written; `quantfleet verify` and a resumed run check a folder against it. A folder with
several formats has one manifest, with the files of all of them.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pydantic import Field, ValidationError

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import Frozen

MANIFEST_NAME = "quantfleet-manifest.json"
_VERSION = 1
_CHUNK_BYTES = 1 << 20


class FileDigest(Frozen):
    """What one file must be."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Manifest(Frozen):
    """What a published folder must be; names are relative, with forward slashes."""

    version: int
    plan: str  # digest of the plan that made the folder
    files: dict[str, FileDigest]


def manifest(files: Mapping[str, tuple[str, int]], plan_digest: str) -> bytes:
    """The manifest's bytes, from name -> (SHA-256 hex, size) of every other file of the folder."""
    digests = {name: FileDigest(sha256=sha256, size=size) for name, (sha256, size) in files.items()}
    content = Manifest(version=_VERSION, plan=plan_digest, files=digests).model_dump(mode="json")
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a published folder; InvalidInput where there is none that can be read."""
    path = folder / MANIFEST_NAME
    try:
        found = Manifest.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        rule = f"must be a published folder, which has a {MANIFEST_NAME}"
        raise InvalidInput("folder", str(folder), rule) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(str(path), where, f"must be a manifest ({first['msg']})") from None
    if found.version != _VERSION:
        raise InvalidInput(f"{path}: version", found.version, f"must be {_VERSION}")
    for name in found.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InvalidInput(str(path), name, "must name files of its own folder only")
    return found


def check(folder: Path) -> list[str]:
    """What is wrong with a published folder, one line a file, sorted; nothing where it is whole.

    Reads every byte. A wrong size is told without hashing.
    """
    expected = read_manifest(folder).files
    present = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    problems = [f"{name}: is in no manifest" for name in present - {MANIFEST_NAME, *expected}]
    problems += [f"{name}: is missing" for name in expected.keys() - present]
    for name in expected.keys() & present:
        problem = _difference(folder / name, expected[name])
        if problem is not None:
            problems.append(f"{name}: {problem}")
    return sorted(problems)


def _difference(path: Path, expected: FileDigest) -> str | None:
    if path.is_symlink() or not path.is_file():
        return "is no regular file"
    size = path.stat().st_size
    if size != expected.size:
        return f"has {size} bytes instead of {expected.size}"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != expected.sha256:
        return f"has SHA-256 {digest.hexdigest()} instead of {expected.sha256}"
    return None

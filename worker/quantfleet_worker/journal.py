"""What is committed: the one file that says how far the work has come.

Written by rank 0 only, whole, by one rename (`WorkFolder.new_file`), after everything it mentions
is on disk. Read by the launcher (may this work go on?) and by every rank (where to go on). Imports
no torch.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from quantfleet_api.errors import InvalidInput
from quantfleet_api.report import LayerReport
from quantfleet_worker.work_folder import WorkFolder

FILE_NAME = "journal.json"
BEGUN = "begun.txt"  # a line a layer; it tells, and nothing depends on it
VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _finite(value: float | None) -> float | None:
    """None for what JSON cannot hold: an error whose square is beyond float32."""
    return value if value is not None and isfinite(value) else None


class FileRecord(_Record):
    """A finished file: path relative to the work folder."""

    sha256: str
    num_bytes: int


class LinearReport(_Record):
    """How far one quantized linear is from the float one."""

    name: str
    scheme: str
    relative_error: Annotated[float | None, BeforeValidator(_finite)]
    measured_by: str  # second_moment | reservoir | weights
    input_scale: float | None = None
    input_zero_point: int | None = None


class SiteReport(_Record):
    """What was seen at one site."""

    name: str
    rows: int
    nonfinite: int
    dead_channels: int
    clipped_channels: int
    smoothed: bool


class LayerRecord(_Record):
    """A committed layer."""

    index: int
    name: str
    files: dict[str, FileRecord]
    source_sha256: dict[str, str]  # content of each source tensor, as read
    linears: tuple[LinearReport, ...] = ()
    sites: tuple[SiteReport, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0  # from its first micro-batch to its commit
    repeated: bool = False  # an attempt before had begun to solve it


class Checkpoint(_Record):
    """Activations after `layer`: each file's name and its size in bytes."""

    layer: int
    files: dict[str, int]


class Journal(_Record):
    """Committed layers are 0 .. len(layers) - 1."""

    version: int = VERSION
    plan_digest: str
    attempt: int
    numerics: dict[str, str]
    layers: tuple[LayerRecord, ...] = ()
    checkpoint: Checkpoint | None = None
    warnings: tuple[str, ...] = ()


def layer_report(layer: LayerRecord) -> LayerReport:
    """What people are told of a committed layer: the worst of its linears."""
    errors = [linear.relative_error for linear in layer.linears]
    known = [error for error in errors if error is not None]
    return LayerReport(
        layer=layer.index,
        seconds=layer.seconds,
        relative_error=max(known, default=None),
        repeated=layer.repeated,
    )


def note_begun(folder: WorkFolder, layer: int) -> None:
    """Rank 0, before a layer is solved: should this attempt be lost, the next one knows it."""
    path = folder.path / BEGUN
    with folder.writing(path), path.open("a") as file:
        file.write(f"{layer}\n")


def begun_layer(folder: WorkFolder) -> int | None:
    """The layer that the attempts before began last; None where there is none."""
    try:
        whole = (folder.path / BEGUN).read_text().rpartition("\n")[0].split()
    except OSError:
        return None
    return int(whole[-1]) if whole else None


def read_journal(folder: WorkFolder) -> Journal | None:
    """The journal of the work; None when nothing was committed yet."""
    path = folder.path / FILE_NAME
    try:
        return Journal.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        folder.check_fence()
        return None
    except (ValidationError, OSError) as error:
        raise InvalidInput(
            "spec.output",
            str(path),
            "must be a journal of this version of quantfleet (--discard-journal starts over)",
        ) from error


def write_journal(folder: WorkFolder, journal: Journal) -> None:
    """Commit; TryAgain where a later attempt has taken over."""
    folder.write_bytes(folder.path / FILE_NAME, journal.model_dump_json(indent=1).encode())


def check_same_plan(journal: Journal, *, digest: str, plan: str, journal_plan: str) -> None:
    """Refuse the journal of another plan and say what differs (both plans as JSON)."""
    if journal.plan_digest == digest:
        return
    differences = list(_differences(json.loads(journal_plan), json.loads(plan)))
    shown = "; ".join(differences[:4]) or "the plan itself"
    raise InvalidInput(
        "spec.output",
        shown,
        "must continue the plan of its work folder (--discard-journal starts over)",
    )


def check_same_numerics(
    journal: Journal, numerics: Mapping[str, str], *, allow_other: bool
) -> tuple[str, ...]:
    """Refuse to mix numerics identities in one output, or say what is mixed as warnings."""
    differing = [
        f"{key} was {journal.numerics.get(key)!r}, is {numerics.get(key)!r}"
        for key in sorted(set(journal.numerics) | set(numerics))
        if journal.numerics.get(key) != numerics.get(key)
    ]
    if differing and not allow_other:
        raise InvalidInput(
            "spec.checkpoint.allowOtherNumerics",
            "; ".join(differing),
            "must be true to go on under another numerics identity",
        )
    return tuple(f"resumed under another numerics identity: {text}" for text in differing)


def _differences(old: Any, new: Any, path: str = "") -> "list[str]":
    """Leaf by leaf, `path: old -> new`; long lists are compared item by item."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in list(old) + [key for key in new if key not in old]
            for line in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for index, (left, right) in enumerate(zip(old, new, strict=True))
            for line in _differences(left, right, f"{path}[{index}]")
        ]
    if old == new:
        return []
    if isinstance(old, list) and isinstance(new, list):
        return [f"{path}: {len(old)} entries -> {len(new)}"]
    return [f"{path}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""A small job that is right, for tests to spoil."""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

MANIFEST: dict[str, Any] = {
    "apiVersion": "quantfleet.io/v1alpha1",
    "kind": "QuantizationJob",
    "metadata": {"name": "tiny"},
    "spec": {
        "model": {"source": {"pvc": {"claimName": "models", "path": "llama"}}},
        "calibration": {
            "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
            "sampleCount": 4,
            "sequenceLength": 32,
        },
        "recipe": {"scheme": "W8A8", "weights": {"method": "RTN"}},
        "output": {"pvc": {"claimName": "out", "path": "result"}, "formats": ["CompressedTensors"]},
    },
}


@dataclass(kw_only=True)
class Job:
    """Everything of a job as files under `root`, ready to be spoilt."""

    root: Path
    manifest: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(MANIFEST))
    text: str | None = None  # instead of the manifest
    options: list[str] = field(default_factory=list)
    volumes: dict[str, str] = field(default_factory=dict)  # what differs

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.root / "models" / "llama"

    @property
    def data(self) -> Path:
        """The calibration file."""
        return self.root / "data" / "calib.jsonl"

    @property
    def output(self) -> Path:
        """What would be published."""
        return self.root / "out" / "result"

    @property
    def spec(self) -> dict[str, Any]:
        """The manifest's spec."""
        spec: dict[str, Any] = self.manifest["spec"]
        return spec

    def change_config(self, **changes: Any) -> None:
        """Set fields of config.json; None removes."""
        path = self.model / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    def change_weights(self, change: Callable[[dict[str, Tensor]], None]) -> None:
        """Write model.safetensors anew."""
        path = self.model / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    def arguments(self, command: str = "run") -> list[str]:
        """What is typed after `quantfleet`; writes the manifest."""
        path = self.root / "job.yaml"
        text = json.dumps(self.manifest) if self.text is None else self.text
        path.write_text(text, errors="surrogateescape")
        volumes = {name: str(self.root / name) for name in ("models", "data", "out")}
        volumes |= self.volumes
        typed = [command, str(path), *self.options]
        for name, folder in volumes.items():
            typed += ["--volume", f"{name}={folder}"] if folder else []
        return typed

    def everything(self) -> dict[str, str]:
        """All that lies in the claims, with its content."""
        return {
            path.relative_to(self.root).as_posix(): ""
            if path.is_dir()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            for name in ("models", "data", "out")
            for path in sorted((self.root / name).rglob("*"))
        }


@dataclass(frozen=True)
class Said:
    """How the command ended."""

    code: int
    stdout: str
    stderr: str


Spoil = Callable[[Any], None]
CASES: dict[str, tuple[Spoil, str, str]] = {}


def case(rule: str, value: str) -> Callable[[Spoil], Spoil]:
    """Registers a way to spoil a job: how the field and its rule, and how the value are told.

    Both are beginnings; {root} stands for the job's folder.
    """

    def register(spoil: Spoil) -> Spoil:
        CASES[spoil.__name__.replace("_", "-")] = (spoil, rule, value)
        return spoil

    return register

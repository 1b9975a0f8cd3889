"""Tiny checkpoints, texts and manifests for the tests of planning."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from quantfleet_api.loading import parse_job
from quantfleet_api.spec import QuantizationJob
from quantfleet_worker.planning import Planned, make_plan
from tiny_models import make_tiny_model, tiny_texts, write_jsonl

MANIFEST: dict[str, Any] = {
    "apiVersion": "quantfleet.io/v1alpha1",
    "kind": "QuantizationJob",
    "metadata": {"name": "tiny"},
    "spec": {
        "model": {"source": {"pvc": {"claimName": "models", "path": "llama"}}},
        "calibration": {
            "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
            "sampleCount": 6,
            "sequenceLength": 32,
        },
        "recipe": {"scheme": "W8A8", "weights": {"method": "RTN"}, "propagation": "Quantized"},
        "output": {
            "pvc": {"claimName": "out", "path": "result"},
            "formats": ["CompressedTensors"],
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Folders of the claims `models`, `data` and `out`, and manifests over them."""

    root: Path

    @property
    def volumes(self) -> dict[str, Path]:
        """What `--volume` would say."""
        return {name: self.root / name for name in ("models", "data", "out")}

    def manifest(self, **changes: Any) -> dict[str, Any]:
        """The manifest with values set by path, as in recipe__scheme="W8A16"; None removes."""
        manifest = copy.deepcopy(MANIFEST)
        for path, value in changes.items():
            *parents, last = path.split("__")
            part = manifest["spec"]
            for name in parents:
                part = part.setdefault(name, {})
            if value is None:
                part.pop(last, None)
            else:
                part[last] = value
        return manifest

    def job(self, **changes: Any) -> QuantizationJob:
        """A parsed manifest; see `manifest`."""
        return parse_job(self.manifest(**changes))

    def plan(self, model: str = "llama", **changes: Any) -> Planned:
        """The plan of a job for one of the models."""
        return make_plan(self.job(**_with_model(model, changes)), volumes=self.volumes)


def _with_model(model: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {"model__source": {"pvc": {"claimName": "models", "path": model}}, **changes}


@pytest.fixture(scope="session")
def shared_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read-only checkpoints: one a family, tied and untied heads, both dtypes."""
    root = tmp_path_factory.mktemp("models")
    make_tiny_model(root / "llama", "llama")
    make_tiny_model(root / "llama-tied", "llama", tied=True, dtype=torch.bfloat16)
    make_tiny_model(root / "mistral", "mistral")
    make_tiny_model(root / "qwen2", "qwen2", tied=True)
    make_tiny_model(root / "qwen3", "qwen3", dtype=torch.bfloat16, shard_bytes=200_000)
    return root


@pytest.fixture
def bench(tmp_path: Path, shared_models: Path) -> Bench:
    """A bench of its own folders, but shared checkpoints: link them, never write to them."""
    (tmp_path / "models").mkdir()
    for folder in shared_models.iterdir():
        (tmp_path / "models" / folder.name).symlink_to(folder)
    (tmp_path / "out").mkdir()
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "calib.jsonl", tiny_texts(12))
    write_jsonl(tmp_path / "data" / "eval.jsonl", tiny_texts(20, seed=1))
    return Bench(root=tmp_path)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other tests of this process may have asked for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

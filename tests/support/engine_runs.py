"""Whole runs of the engine in tests: manifests in a few words, folders, digests of what came out.

`Place` is where a run happens: the claims `models`, `data` and `out` as folders under one root.
"""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantfleet_api.errors import ExitCode
from quantfleet_api.loading import parse_job
from quantfleet_worker.launch import Outcome, run_job
from tiny_models import tiny_texts, write_jsonl

Manifest = dict[str, Any]

BOTH = ("CompressedTensors", "Ascend")
_CHUNK = 1 << 20
_WORDS = (20, 7, 60, 13, 1, 33, 25, 9, 41, 16, 5, 28)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Folders of the three claims."""

    root: Path

    @property
    def volumes(self) -> dict[str, Path]:
        """What `--volume` would say."""
        return {claim: self.root / claim for claim in ("models", "data", "out")}

    def output(self, name: str = "result") -> Path:
        """Where an output of that name is published."""
        return self.root / "out" / name

    def run(
        self, manifest: Manifest, *, ranks: int = 1, output: str = "result", **options: Any
    ) -> Outcome:
        """Carry a manifest out, whatever comes of it."""
        job = copy.deepcopy(manifest)
        job["spec"]["output"]["pvc"]["path"] = output
        return run_job(parse_job(job), volumes=self.volumes, workers=ranks, **options)

    def publish(
        self, manifest: Manifest, *, ranks: int = 1, output: str = "result", **options: Any
    ) -> Outcome:
        """Carry a manifest out, which must succeed."""
        outcome = self.run(manifest, ranks=ranks, output=output, **options)
        assert outcome.exit_code == ExitCode.DONE, f"{outcome.cause}\n{outcome.hint}"
        assert outcome.report is not None
        return outcome


def make_place(root: Path, *, models: Mapping[str, Path]) -> Place:
    """A place with its own data and output, whose models are links to read-only checkpoints.

    `calib.jsonl` has 12 texts of unequal lengths, one of them longer than 48 tokens; `eval.jsonl`
    has 20 texts.
    """
    for claim in ("models", "data", "out"):
        (root / claim).mkdir(parents=True)
    for name, folder in models.items():
        (root / "models" / name).symlink_to(folder)
    texts = [tiny_texts(1, words=words, seed=i)[0] for i, words in enumerate(_WORDS)]
    write_jsonl(root / "data" / "calib.jsonl", texts)
    write_jsonl(root / "data" / "eval.jsonl", tiny_texts(20, seed=99))
    return Place(root=root)


def make_manifest(
    model: str,
    recipe: Mapping[str, Any],
    *,
    formats: tuple[str, ...] = ("CompressedTensors",),
    data: str = "calib.jsonl",
    evaluation: Mapping[str, Any] | None = None,
    **calibration: Any,
) -> Manifest:
    """A manifest over `models`, `data` and `out`; `calibration` in the manifest's own spelling."""
    spec: dict[str, Any] = {
        "model": {"source": {"pvc": {"claimName": "models", "path": model}}},
        "calibration": {
            "source": {"pvc": {"claimName": "data", "path": data}},
            "sampleCount": 10,
            "sequenceLength": 48,
            **calibration,
        },
        "recipe": {"weights": {"method": "RTN"}, **recipe},
        "output": {
            "pvc": {"claimName": "out", "path": "result"},
            "formats": list(formats),
        },
    }
    if evaluation is not None:
        source = {"pvc": {"claimName": "data", "path": "eval.jsonl"}}
        spec["evaluation"] = {"source": source, **evaluation}
    return {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": "test"},
        "spec": spec,
    }


def folder_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by relative name; read here, not from a manifest."""
    return {
        path.relative_to(folder).as_posix(): _sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()

"""Manifests as tests start from them: parsed data, to be edited by path."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FULL_JOB = Path(__file__).parent / "full-job.yaml"

MINIMAL = {
    "apiVersion": "quantfleet.io/v1alpha1",
    "kind": "QuantizationJob",
    "metadata": {"name": "small"},
    "spec": {
        "model": {"source": {"pvc": {"claimName": "models", "path": "m"}}},
        "recipe": {"scheme": "W8A8Dynamic", "weights": {"method": "RTN"}},
        "output": {"pvc": {"claimName": "out", "path": "o"}, "formats": ["CompressedTensors"]},
    },
}

DELETE = "<delete>"
"""An edit that removes a field."""

Edits = Mapping[str, object]


def edited(document: dict[str, Any], edits: Edits) -> dict[str, Any]:
    """A copy of `document` with a value (or DELETE) put at each dotted path."""
    result = copy.deepcopy(document)
    for path, value in edits.items():
        *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        target: Any = result
        for step in parents:
            target = target[step] if isinstance(step, int) else target.setdefault(step, {})
        if value == DELETE:
            del target[last]
        else:
            target[last] = copy.deepcopy(value)  # later edits may go into it
    return result


def full(edits: Edits | None = None) -> dict[str, Any]:
    """The manifest with every field, edited."""
    return edited(yaml.safe_load(FULL_JOB.read_text()), edits or {})


def minimal(edits: Edits | None = None) -> dict[str, Any]:
    """The shortest manifest, edited."""
    return edited(MINIMAL, edits or {})

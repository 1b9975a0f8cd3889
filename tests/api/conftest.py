"""Manifests as the tests of this folder start from them: as parsed data, to be edited by path."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
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


def _edited(document: dict[str, Any], edits: Edits) -> dict[str, Any]:
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
            target[last] = value
    return result


@pytest.fixture
def full_job() -> Path:
    """A manifest with every field."""
    return FULL_JOB


@pytest.fixture
def full() -> Callable[..., dict[str, Any]]:
    """Builds the full manifest with edits, as parsed data."""
    return lambda edits={}: _edited(yaml.safe_load(FULL_JOB.read_text()), edits)


@pytest.fixture
def minimal() -> Callable[..., dict[str, Any]]:
    """Builds the shortest manifest with edits, as parsed data."""
    return lambda edits={}: _edited(MINIMAL, edits)

"""Fixtures of tests that run real jobs on real nodes; tests/cluster/conftest.py hands them out."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import build_images
from containers import BuiltImage, built_image, open_to_all
from control_plane import ControlPlane
from real_jobs import EIGHT_LAYERS, Ground, example, ground, reference
from two_nodes import release
from two_nodes.site import Site

FIGURES = "cluster-figures.jsonl"
"""Below the cache folder: what tests measured, a JSON line each."""


@pytest.fixture(scope="session")
def worker_image() -> BuiltImage:
    """The image that the pods run."""
    found = built_image("quantfleet-worker")
    if found is None:
        pytest.skip("the image quantfleet-worker is missing or out of date: run `make images`")
    return found


@pytest.fixture(scope="session")
def installed(site: Site, product_images: None) -> Iterator[str]:
    """The chart with its defaults, all of it ready; its namespace."""
    release.install(site)
    yield release.NAMESPACE
    release.uninstall(site)


@pytest.fixture(scope="session")
def shared_ground(site: Site, plane: ControlPlane, installed: str, demo: Any) -> Iterator[Ground]:
    """A namespace for all jobs that do not need one of their own."""
    models, data = demo.model.parent, demo.calibration.parent
    with ground(plane.cluster, "ground", models=models, data=data, folder=site.volumes) as made:
        yield made


@pytest.fixture(scope="session")
def expected(
    worker_image: BuiltImage, demo: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What a run without a cluster publishes of the model's first two layers."""
    return _reference(worker_image, tmp_path_factory.mktemp("two"), demo, {})


@pytest.fixture(scope="session")
def expected_of_eight(
    worker_image: BuiltImage, demo: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The same of its first eight layers."""
    return _reference(worker_image, tmp_path_factory.mktemp("eight"), demo, EIGHT_LAYERS)


def _reference(
    image: BuiltImage, folder: Path, demo: Any, edits: Mapping[str, object]
) -> dict[str, str]:
    models, data = demo.model.parent, demo.calibration.parent
    manifest = example("reference", edits)
    open_to_all(folder)
    return reference(image, manifest, models=models, data=data, folder=folder)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """What a test measures is written down, also when it fails."""
    measured: dict[str, object] = {}
    yield measured
    line = {"test": request.node.name, "time": int(time.time()), **measured}
    with (build_images.images_folder().parent / FIGURES).open("a") as file:
        file.write(json.dumps(line) + "\n")

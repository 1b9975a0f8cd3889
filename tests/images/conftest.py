"""The images that `make images` built; what needs them has the marker `cluster`."""

import pytest

from build_images import IMAGES
from containers import BuiltImage, built_image


def _built(name: str) -> BuiltImage:
    found = built_image(name)
    if found is None:
        pytest.skip(f"the image {name} is missing or out of date: run `make images`")
    return found


@pytest.fixture(scope="session", params=[image.name for image in IMAGES])
def image(request: pytest.FixtureRequest) -> BuiltImage:
    """Each of the images."""
    return _built(request.param)


@pytest.fixture(scope="session")
def worker() -> BuiltImage:
    """The worker's image."""
    return _built("quantfleet-worker")


@pytest.fixture(scope="session")
def operator() -> BuiltImage:
    """The image of operator and status server."""
    return _built("quantfleet-operator")

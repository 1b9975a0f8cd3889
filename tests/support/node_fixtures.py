"""The cluster of real nodes that a test run shares; tests/cluster/conftest.py hands it out."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane import ControlPlane, running_plane
from two_nodes import host, images, kind, lifecycle, release
from two_nodes.site import ClusterError, Site, this_site

BUSYBOX = Path("/bin/busybox")  # of Debian's busybox-static
BUSYBOX_IMAGE = "docker.io/library/quantfleet-busybox:1"


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Two nodes on this machine: those that `make cluster-up` left, or some for this run alone.

    Tests install the chart themselves, so one that runs already is removed for their time.
    """
    if os.geteuid() != 0:
        pytest.skip("nodes need root: namespaces, mounts and control groups")
    try:
        if kind.wanted():
            pytest.skip("nodes that tests can break: set QUANTFLEET_NODES=own")
        place = this_site()
        host.programs_folder()
    except ClusterError as missing:
        pytest.skip(str(missing))
    with lifecycle.exclusive_site(place):
        found = lifecycle.is_up(place)
        lifecycle.up(place, print, images.archives_there())
        if found:
            release.uninstall(place)
    yield place
    with lifecycle.exclusive_site(place):
        if not found:
            lifecycle.down(place)


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> ControlPlane:
    """The control plane of the cluster; `QUANTFLEET_KUBECONFIG` names that of a foreign one."""
    given = os.environ.get("QUANTFLEET_KUBECONFIG")
    if given:
        return running_plane(Path(given))
    place: Site = request.getfixturevalue("kind_site" if kind.wanted() else "site")
    return running_plane(place.kubeconfig) if kind.wanted() else host.plane_of(place)


@pytest.fixture(scope="session")
def kind_site() -> Iterator[Site]:
    """The cluster that kind makes: the one that runs already, or one for this run alone."""
    place = this_site()
    with lifecycle.exclusive_site(place):
        found = kind.is_made(place)
        kind.up(place)
        if found:
            release.uninstall(place)
    yield place
    if not found:
        kind.down(place)


@pytest.fixture(scope="session")
def product_images(plane: ControlPlane, request: pytest.FixtureRequest) -> None:
    """Our images are on the nodes; a foreign cluster pulls them from where it likes."""
    if os.environ.get("QUANTFLEET_KUBECONFIG"):
        return
    try:
        archives = images.built_archives()
    except ClusterError as missing:
        pytest.skip(str(missing))
    if kind.wanted():
        kind.load(request.getfixturevalue("kind_site"), archives)
    else:
        images.load(request.getfixturevalue("site"), archives)


@pytest.fixture(scope="session")
def busybox(site: Site) -> str:
    """An image with a shell and network tools, on both nodes; its name."""
    if not BUSYBOX.exists():
        pytest.skip(f"{BUSYBOX} is missing: run `make cluster-programs`")
    archive = site.folder / "busybox.tar"
    if not archive.exists():
        content = {"bin/busybox": BUSYBOX.read_bytes()}
        images.write_archive(archive, BUSYBOX_IMAGE, content, ["busybox"])
    images.load(site, [archive])
    return BUSYBOX_IMAGE

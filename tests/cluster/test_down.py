"""Whatever happened to a cluster, down leaves nothing of it, and up works again.

The cluster is one beside that of the other tests, as of a second clone on the same machine.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from child_process import wait_for
from cluster_access import Json
from node_fixtures import BUSYBOX, BUSYBOX_IMAGE
from small_pods import FOREVER, address, start, template
from two_nodes import control_groups, host, images, lifecycle, network
from two_nodes.lifecycle import SYSCTLS
from two_nodes.site import NODE_NUMBERS, REPOSITORY, ClusterError, Site, this_site

pytestmark = pytest.mark.cluster
FIXED_PLACES = (
    *("/run/containerd", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers"),
    *("/var/log/pods", "/opt/containerd", "/run/xtables.lock", "/run/flannel"),
)
"""Where programs of a node write without being asked to."""


@pytest.fixture
def second(
    site: Site, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """The place of a second cluster; `site` is up meanwhile."""
    cache = tmp_path_factory.mktemp("second")  # tmp_path has the test's name: too long for sockets
    (cache / "kubernetes").symlink_to(host.programs_folder().parent)
    monkeypatch.setenv("QUANTFLEET_CACHE", str(cache))
    place = this_site()
    yield place
    lifecycle.down(place)


def traces(site: Site) -> Mapping[str, object]:
    """All that this machine shows of a cluster, and what a cluster could change on it."""
    marks = (os.fsencode(site.folder), site.group.encode())
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                about = b"".join((entry / n).read_bytes() for n in ("cgroup", "cmdline", "environ"))
            except OSError:
                continue  # ended meanwhile
            if any(mark in about for mark in marks):
                processes.append((entry.name, about))
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "processes": processes,
        "mounts": [line for line in mounts if any(mark.decode() in line for mark in marks)],
        "links": network.links(site),
        "groups": [str(m / site.group) for m in control_groups.hierarchies()]
        if control_groups.exists(site)
        else [],
        "folder": site.folder.exists(),
        "iptables": subprocess.check_output(["iptables-save"], text=True).count("\n-A"),
        "routes": subprocess.check_output(["ip", "route", "show", "table", "all"], text=True),
        "places": [place for place in FIXED_PLACES if Path(place).exists()],
        "loops": subprocess.check_output(["losetup", "--all"], text=True),
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
    }


def run_pod(site: Site) -> None:
    """Run a pod on each node: they bring shims, mounts and namespaces."""
    archive = site.folder / "busybox.tar"
    images.write_archive(archive, BUSYBOX_IMAGE, {"bin/busybox": BUSYBOX.read_bytes()}, ["busybox"])
    images.load(site, [archive])
    cluster = host.plane_of(site).cluster
    for node in site.nodes:
        body: Json = template(BUSYBOX_IMAGE, FOREVER, node=node.name)
        wait_for("account", lambda: cluster.find("serviceaccounts", "default", namespace="default"))
        start(cluster, "default", f"pod-{node.number}", body)
    for number in NODE_NUMBERS:
        wait_for("pod", lambda number=number: address(cluster, "default", f"pod-{number}"))


def kill_everything(site: Site) -> None:
    """SIGKILL to daemons, shims and containers, in no order."""
    groups = [mount / site.group for mount in control_groups.hierarchies()]
    for pid in {pid for group in groups for pid in control_groups.members(group)}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_a_second_cluster_leaves_nothing_also_after_everything_was_killed(second: Site) -> None:
    before = traces(second)
    lifecycle.up(second, print)
    run_pod(second)
    during = traces(second)
    assert len(during["processes"]) > 20  # type: ignore[arg-type]
    assert during["links"]
    kill_everything(second)
    assert not lifecycle.is_up(second)
    lifecycle.up(second, print)  # on what the crash left
    run_pod(second)
    lifecycle.down(second)
    assert traces(second) == before


def recorded(site: Site) -> bool:
    return site.record.exists()


def bridged(site: Site) -> bool:
    return site.group in network.links(site)


def with_a_kubelet(site: Site) -> bool:
    return (site.folder / "logs" / "node-2-kubelet.log").exists()


@pytest.mark.parametrize("moment", [recorded, bridged, with_a_kubelet])
def test_an_up_that_was_killed_leaves_nothing_after_down(
    second: Site, moment: Callable[[Site], bool]
) -> None:
    before = traces(second)
    search = os.pathsep.join(str(REPOSITORY / name) for name in ("testbed", "tests/support"))
    up = subprocess.Popen(
        [sys.executable, "-m", "two_nodes", "up", "--bare"],
        env={**os.environ, "PYTHONPATH": search},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(moment.__name__, lambda: moment(second), every=0.001)
    finally:
        up.kill()
        up.wait()
    lifecycle.down(second)
    assert traces(second) == before


def test_down_of_nothing_is_no_error(second: Site) -> None:
    lifecycle.down(second)


@pytest.mark.parametrize("folder", ["/var/lib/ci", "/srv/" + "deep/" * 12])
def test_a_folder_that_cannot_serve_is_named_in_one_line(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTFLEET_CACHE", folder)
    with pytest.raises(ClusterError, match=r"\A/.*set QUANTFLEET_CACHE\Z"):
        this_site()

"""What happens to pods and nodes of the test cluster: each fault in one function.

The processes of containers are processes of this machine too, found by their control group.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from child_process import wait_for
from cluster_access import Cluster, Json
from two_nodes import host, network, nodes, programs
from two_nodes.site import Node, Site

WORKER = "quantfleet_worker"


def processes_of(pod: Json) -> list[int]:
    """Pids of the worker container's processes, the container's own first."""
    mark = "pod" + pod["metadata"]["uid"]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            groups = (entry / "cgroup").read_text()
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if mark in groups and "python" in words:
            found.append(int(entry.name))
    return sorted(found)


def kill_worker(pod: Json) -> None:
    """SIGKILL to the container's first process, as an operator of a machine would."""
    own, *_ = [pid for pid in processes_of(pod) if WORKER in _words(pid)]
    os.kill(own, signal.SIGKILL)


def kill_rank(pod: Json) -> None:
    """SIGKILL to the process of a rank, which is the youngest and not the container's first."""
    *_, rank = processes_of(pod)
    os.kill(rank, signal.SIGKILL)


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def node_of(site: Site, pod: Json) -> Node:
    """The node that a pod runs on."""
    return next(node for node in site.nodes if node.name == pod["spec"]["nodeName"])


def stop_api_server(site: Site, *, seconds: float) -> None:
    """The API server is gone for a while."""
    programs.stop(site, "kube-apiserver")
    time.sleep(seconds)  # the fault itself: nothing to wait for
    host.start_api(site)


def restart_containerd(site: Site, node: Node) -> None:
    """A node's containerd ends and comes back; containers run on under their shims."""
    name = nodes.program(node, "containerd")
    programs.stop(site, name)
    nodes.start_program(site, node, host.plane_of(site), "containerd")


@contextmanager
def kubelet_stopped(site: Site, node: Node) -> Iterator[None]:
    """A node's kubelet is dead; its pods run on."""
    programs.stop(site, nodes.program(node, "kubelet"), kill=True)
    try:
        yield
    finally:
        nodes.start_program(site, node, host.plane_of(site), "kubelet")
        _wait_ready(host.plane_of(site).cluster, node)


@contextmanager
def drained(cluster: Cluster, site: Site, node: Node) -> Iterator[None]:
    """A node takes no pods, and those of it were evicted."""
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s")
    try:
        cluster.kubectl("drain", node.name, *words)
        yield
    finally:
        cluster.kubectl("uncordon", node.name)


def cut_network(cluster: Cluster, node: Node, *, seconds: float) -> None:
    """A node reaches nobody for a while, and nobody reaches it."""
    network.cut(node)
    try:
        time.sleep(seconds)  # the fault itself: nothing to wait for
    finally:
        network.heal(node)
    _wait_ready(cluster, node)


def _wait_ready(cluster: Cluster, node: Node) -> None:
    def ready() -> bool:
        conditions = cluster.get("nodes", node.name)["status"]["conditions"]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    wait_for(f"{node.name} ready", ready, seconds=120)


def fill(folder: Path) -> Path:
    """Take all that is left of a file system; the file to remove again."""
    filler = folder / "filler"
    left = os.statvfs(folder)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize)
    return filler


@contextmanager
def small_volume(site: Site, folder: Path, image: Path, *, megabytes: int) -> Iterator[None]:
    """A file system of its own in a folder, the same one on this machine and on every node.

    A block device that is mounted several times is one file system, so what a pod writes is seen
    here.
    """
    with image.open("wb") as file:
        file.truncate(megabytes * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    found = subprocess.run(
        ["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True
    )
    device = found.stdout.strip()
    places: list[list[str]] = [[], *(nodes.enter(site, node) for node in site.nodes)]
    mounted = []
    try:
        for place in places:
            subprocess.run([*place, "mount", device, str(folder)], check=True)
            mounted.append(place)
        yield
    finally:
        for place in mounted:
            subprocess.run([*place, "umount", "--lazy", str(folder)], check=True)
        subprocess.run(["losetup", "--detach", device], check=True)
        image.unlink()

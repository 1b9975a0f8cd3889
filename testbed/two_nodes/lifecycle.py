"""Up and down: the whole cluster made and removed, after any crash too."""

import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import child_process
from cluster_access import Json
from control_plane import ControlPlane
from two_nodes import control_groups, host, image_store, images, network, nodes, programs
from two_nodes.site import NODE_NUMBERS, Chosen, ClusterError, Node, Site, new_token

SYSCTLS = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
"""Settings of the whole machine that a kubelet changes."""
READY_SECONDS = 90.0
CHOOSING = Path("/run/lock/quantfleet-network")
"""Two clones that choose a subnet at once wait for each other there."""


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Wait for a lock file that a crash cannot leave locked."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def exclusive_site(site: Site) -> AbstractContextManager[None]:
    """Nobody else makes, changes or removes this cluster meanwhile."""
    return exclusive(site.folder.with_suffix(".lock"))


def up(site: Site, say: Callable[[str], None], archives: Sequence[Path] = ()) -> None:
    """Make the cluster and wait until both nodes are ready; remove leftovers before.

    One that is up and well is left alone, but for images in `archives` that it lacks.
    """
    programs_folder = host.programs_folder()
    if is_up(site):
        images.load(site, archives)
        return
    down(site)
    say(f"making a cluster of two nodes in {site.folder}")
    _make_places(site)
    plane = host.start_control_plane(site)
    host.start_dns(site)
    pause = images.write_pause(site, programs_folder / "pause")
    for node, token in zip(site.nodes, site.chosen.node_tokens, strict=True):
        nodes.create_space(site, node)
        nodes.write_configuration(site, node, plane, token)
    image_store.fill(site, site.nodes[0], [pause, *archives])
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: _start_node(site, node, plane), site.nodes))
        list(pool.map(lambda node: _wait_ready(site, node, plane), site.nodes))
        list(pool.map(lambda node: nodes.start_firewall(site, node, plane), site.nodes))


def down(site: Site) -> None:
    """Remove the cluster or what is left of it; nothing is left behind, and nothing is no error."""
    control_groups.remove(site)  # with the processes go the nodes' namespaces, mounts and rules
    network.remove_bridge(site)
    if site.record.exists():
        for name, value in site.chosen.sysctls.items():
            Path("/proc/sys", name).write_text(value)
    shutil.rmtree(site.folder, ignore_errors=True)
    if site.folder.exists():
        raise ClusterError(f"{site.folder} cannot be removed")


def is_up(site: Site) -> bool:
    """Whether the cluster is there, all that was started runs and both nodes are ready."""
    if not site.record.exists() or not network.links(site) or programs.ended(site):
        return False
    return host.api_answers(site) and nodes_ready(host.plane_of(site))


def nodes_ready(plane: ControlPlane) -> bool:
    """Whether both nodes report that pods can run on them."""
    return len(_ready_names(plane)) == len(NODE_NUMBERS)


def _wait_ready(site: Site, node: Node, plane: ControlPlane) -> None:
    programs.wait_running(
        site,
        nodes.program(node, "kubelet"),
        lambda: node.name in _ready_names(plane),
        seconds=READY_SECONDS,
    )


def _ready_names(plane: ControlPlane) -> list[str]:
    listed = plane.cluster.list("nodes")
    return [node["metadata"]["name"] for node in listed if _is_ready(node["status"])]


def _is_ready(status: Json) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions") or []
    )


def _make_places(site: Site) -> None:
    with exclusive(CHOOSING):
        site.write(
            Chosen(
                octet=network.free_octet(),
                etcd_port=child_process.free_port(),
                admin_token=new_token(),
                node_tokens=[new_token() for _ in NODE_NUMBERS],
                sysctls={name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
            )
        )
        control_groups.create(site)
        network.create_bridge(site)
    site.volumes.mkdir()


def _start_node(site: Site, node: Node, plane: ControlPlane) -> None:
    image_store.hand_out(site, node)
    for name in ("containerd", "kubelet", "kube-proxy"):
        nodes.start_program(site, node, plane, name)

"""What runs on a node: its namespaces, containerd, kubelet, kube-proxy and the firewall."""

import os
import socket
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import yaml

from control_plane import SERVICE_RANGE, ControlPlane, command_line
from two_nodes import programs
from two_nodes.configuration import containerd_toml, kubelet_yaml, network_json, proxy_yaml
from two_nodes.network import connect
from two_nodes.site import ClusterError, Node, Site

SPACE = """
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=755 state /var/lib
mount -t tmpfs -o mode=755 logs /var/log
exec sleep infinity
"""
"""A node's mount namespace: what programs write to fixed places stays in it, and goes with it."""
READY_SECONDS = 60.0


def program(node: Node, name: str) -> str:
    """A program's name in the records and logs of the site: kubelet, containerd, ..."""
    return f"{node.name}-{name}"


def enter(site: Site, node: Node) -> list[str]:
    """The words before a command that runs it on a node: its network and its mounts."""
    pid = programs.pid_of(site, program(node, "space"))
    if pid is None:
        raise ClusterError(f"{node.name} is gone: run `make cluster-up`")
    return ["nsenter", "--target", str(pid), "--net", "--mount", "--"]


def create_space(site: Site, node: Node) -> None:
    """Make the node's namespaces and connect it; all of its programs enter them."""
    new = ["unshare", "--net", "--mount", "--propagation", "private", "--"]
    name = program(node, "space")
    programs.start(site, name, [*new, "sh", "-ec", SPACE])
    inside = ["nsenter", "--mount", "--target"]

    def covered() -> bool:
        pid = programs.pid_of(site, name)
        look = [*inside, str(pid), "--", "mountpoint", "-q", "/var/log"]
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n" and not subprocess.call(look)

    programs.wait_running(site, name, covered)
    connect(site, node, int(programs.pid_of(site, name) or 0))


def write_configuration(site: Site, node: Node, plane: ControlPlane, token: str) -> None:
    """Write what the node's programs read."""
    for name in ("cni", "certificates", "kubelet"):
        (node.folder / name).mkdir(parents=True, exist_ok=True)
    root = node.folder / "containerd"
    (node.folder / "containerd.toml").write_text(containerd_toml(node, root=root))
    (node.folder / "cni" / "10-pods.conflist").write_text(network_json(site, node))
    (node.folder / "resolv.conf").write_text(f"nameserver {site.gateway}\n")
    (node.folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet_yaml(site, node)))
    (node.folder / "proxy.yaml").write_text(yaml.safe_dump(proxy_yaml(site, node)))
    plane.kubeconfig(node.folder / "kubelet.kubeconfig", token=token)


def start_program(site: Site, node: Node, plane: ControlPlane, name: str) -> None:
    """Start one of the node's programs; of containerd also wait until it answers."""
    commands = {
        "containerd": ["containerd", "--config", str(node.folder / "containerd.toml")],
        "kubelet": _kubelet(node, plane),
        "kube-proxy": command_line(
            plane.programs / "kube-proxy", {"config": str(node.folder / "proxy.yaml")}
        ),
        "kube-router": _firewall(node, plane),
    }
    running = program(node, name)
    programs.start(site, running, [*enter(site, node), *commands[name]])
    if name == "containerd":
        wait_containerd(site, node, running)


def wait_containerd(site: Site, node: Node, running: str) -> None:
    """Wait until a containerd that was started listens on the node's socket."""
    programs.wait_running(site, running, lambda: _listens(node.socket), seconds=READY_SECONDS)


def start_firewall(site: Site, node: Node, plane: ControlPlane) -> None:
    """Start what enforces NetworkPolicy once the node is known, and wait for its rules.

    Services are waited for too: with both, pods that start from now on find the API server.
    """
    start_program(site, node, plane, "kube-router")
    for name, table, rule in (
        ("kube-router", "filter", "KUBE-ROUTER-FORWARD"),
        ("kube-proxy", "nat", "default/kubernetes:https"),
    ):
        rules = ["iptables-save", "--table", table]
        there = partial(_says, site, node, rules, rule)
        programs.wait_running(site, program(node, name), there, seconds=READY_SECONDS)


def _says(site: Site, node: Node, command: Sequence[str], text: str) -> bool:
    return text in run_on(site, node, command)


def _kubelet(node: Node, plane: ControlPlane) -> list[str]:
    flags = {
        "config": str(node.folder / "kubelet.yaml"),
        "kubeconfig": str(node.folder / "kubelet.kubeconfig"),
        "hostname-override": node.name,
        "node-ip": node.address,
        "root-dir": str(node.folder / "kubelet"),
        "cert-dir": str(node.folder / "certificates"),
        "v": "2",
    }
    return command_line(plane.programs / "kubelet", flags)


def _firewall(node: Node, plane: ControlPlane) -> list[str]:
    """Enforces NetworkPolicy; the bridge alone would let everything through."""
    flags = {
        "run-firewall": "true",
        "run-router": "false",
        "run-service-proxy": "false",
        "run-loadbalancer": "false",
        "kubeconfig": str(plane.cluster.kubeconfig),
        "hostname-override": node.name,
        "service-cluster-ip-range": SERVICE_RANGE,
        "iptables-sync-period": "1m",
        "health-port": "0",
    }
    return command_line(plane.programs / "kube-router", flags)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


def run_on(site: Site, node: Node, command: Sequence[str]) -> str:
    """Run a command on a node; its output. ClusterError where it fails."""
    whole = [*enter(site, node), *command]
    done = subprocess.run(whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ClusterError(f"{node.name}: {' '.join(command)}: {done.stdout.strip()}")
    return done.stdout

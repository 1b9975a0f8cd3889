"""Bridge and cables between the host and the nodes; iptables of the host stay untouched."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from two_nodes.site import SUBNET_OCTETS, ClusterError, Node, Site


def free_octet() -> int:
    """An N for which this machine has neither an address nor a route in 10.N.0.0/16."""
    used: list[str] = [
        *(entry["local"] for link in _told("address") for entry in link["addr_info"]),
        *(route["dst"] for route in _told("route", "show", "table", "all")),
    ]
    taken = {address.split(".")[1] for address in used if address.startswith("10.")}
    free = [octet for octet in SUBNET_OCTETS if str(octet) not in taken]
    if not free:
        raise ClusterError("no free network 10.N.0.0/16 on this machine")
    return free[0]


def create_bridge(site: Site) -> None:
    """The host's end: the address that reaches API server and DNS."""
    ip("link", "add", site.group, "type", "bridge")
    ip("address", "add", f"{site.gateway}/24", "dev", site.group)
    ip("link", "set", site.group, "up")


def connect(site: Site, node: Node, pid: int) -> None:
    """Lay the node's cable, and routes to its pods; `pid` is a process of its namespace."""
    inside = ("nsenter", "--target", str(pid), "--net", "--")
    peer = ("peer", "name", "eth0", "netns", str(pid))
    ip("link", "add", node.interface, "type", "veth", *peer)
    ip("link", "set", node.interface, "master", site.group, "up")
    ip("link", "set", "lo", "up", enter=inside)
    ip("address", "add", f"{node.address}/24", "dev", "eth0", enter=inside)
    ip("link", "set", "eth0", "up", enter=inside)
    ip("route", "add", "default", "via", site.gateway, enter=inside)
    for other in site.nodes:
        if other != node:
            ip("route", "add", other.pod_range, "via", other.address, enter=inside)
    ip("route", "add", node.pod_range, "via", node.address)
    _run([*inside, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])


def cut(node: Node) -> None:
    """Take the node's cable out: neither host nor the other node reaches it or its pods."""
    ip("link", "set", node.interface, "down")


def heal(node: Node) -> None:
    """Put the cable back."""
    ip("link", "set", node.interface, "up")


def remove_bridge(site: Site) -> None:
    """Cables go with the nodes' namespaces or here, routes with the bridge."""
    for interface in links(site):
        subprocess.run(["ip", "link", "delete", interface], capture_output=True)
    if left := links(site):
        raise ClusterError(f"interfaces cannot be removed: {', '.join(left)}")


def links(site: Site) -> list[str]:
    """The host's interfaces of this cluster."""
    names = [path.name for path in Path("/sys/class/net").iterdir()]
    return [name for name in names if name == site.group or name.startswith(f"{site.group}-")]


def ip(*arguments: str, enter: Sequence[str] = ()) -> None:
    """Run ip on the host, or behind a command that enters a node."""
    _run([*enter, "ip", *arguments])


def _told(*arguments: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(_run(["ip", "-json", "-4", *arguments]))
    return listed


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stdout.strip()}")
    return done.stdout

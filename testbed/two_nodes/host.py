"""What runs on the host: the control plane, which the nodes reach by the bridge, and the DNS."""

import os
from pathlib import Path

import control_plane
from control_plane import ControlPlane, command_line
from two_nodes import programs
from two_nodes.configuration import CLUSTER_DOMAIN
from two_nodes.site import API_PORT, ClusterError, Site, cache_folder

PROGRAMS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm"),
    *("kubelet", "kube-proxy", "kube-router", "coredns", "pause"),
)
NODE_LOST_SECONDS = 20
"""Silence of a kubelet after which its node counts as lost; five of its reports."""


def programs_folder() -> Path:
    """Where the built programs lie; ClusterError says how to get them."""
    folder = cache_folder() / "kubernetes" / "bin"
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if missing:
        raise ClusterError(
            f"missing in {folder}: {', '.join(missing)}; run `make cluster-programs`"
        )
    return folder


def plane_of(site: Site) -> ControlPlane:
    """The site's control plane, whether it runs or not."""
    return control_plane.describe(
        site.folder / "control-plane",
        programs_folder(),
        host=site.gateway,
        api_port=API_PORT,
        etcd_port=site.chosen.etcd_port,
        token=site.chosen.admin_token,
    )


def start_control_plane(site: Site) -> ControlPlane:
    """Start etcd and the API server and wait for it; then those that need it."""
    plane, chosen = plane_of(site), site.chosen
    users = {chosen.admin_token: ("admin", "system:masters")}
    for node, token in zip(site.nodes, chosen.node_tokens, strict=True):
        users[token] = (f"system:node:{node.name}", "system:nodes")
    control_plane.prepare(plane, users)
    _start(site, plane, "etcd", control_plane.etcd_flags(plane))
    start_api(site)
    plane.kubeconfig(site.kubeconfig, token=chosen.admin_token)
    _start(site, plane, "kube-controller-manager", _controller_flags(site, plane))
    _start(site, plane, "kube-scheduler", control_plane.scheduler_flags(plane))
    return plane


def start_api(site: Site) -> None:
    """Start the API server, and wait until it is ready."""
    plane = plane_of(site)
    _start(site, plane, "kube-apiserver", _api_server_flags(site, plane))
    ready, access = f"{plane.server}/readyz", plane.cluster.access
    programs.wait_running(site, "kube-apiserver", lambda: control_plane.answers(ready, access))


def api_answers(site: Site) -> bool:
    """Whether the API server is ready now."""
    plane = plane_of(site)
    return control_plane.answers(f"{plane.server}/readyz", plane.cluster.access)


def start_dns(site: Site) -> None:
    """A DNS server of the host: pods ask it by the bridge's address, which nothing else has."""
    configuration = site.folder / "Corefile"
    configuration.write_text(
        f"{CLUSTER_DOMAIN}:53 {{\n"
        f"    bind {site.gateway}\n    errors\n"
        f"    kubernetes {CLUSTER_DOMAIN} {{\n"
        f"        kubeconfig {site.kubeconfig} test\n        ttl 5\n    }}\n}}\n"
    )
    program = plane_of(site).programs / "coredns"
    programs.start(site, "coredns", [str(program), "-conf", os.fspath(configuration)])


def _start(site: Site, plane: ControlPlane, name: str, flags: dict[str, str]) -> None:
    programs.start(site, name, command_line(plane.programs / name, flags))


def _api_server_flags(site: Site, plane: ControlPlane) -> dict[str, str]:
    """As on the loopback, but with nodes that are alive and pods that come in by the Service."""
    flags = control_plane.api_server_flags(plane)
    for name in ("endpoint-reconciler-type", "disable-admission-plugins"):
        del flags[name]
    return flags | {
        "advertise-address": site.gateway,
        "allow-privileged": "true",
        "enable-admission-plugins": "NodeRestriction",
        "api-audiences": flags["service-account-issuer"],
        "kubelet-preferred-address-types": "InternalIP",  # nobody resolves the nodes' names
    }


def _controller_flags(site: Site, plane: ControlPlane) -> dict[str, str]:
    return control_plane.controller_flags(plane) | {
        "controllers": "*",
        "use-service-account-credentials": "true",
        "node-monitor-grace-period": f"{NODE_LOST_SECONDS}s",
        "node-monitor-period": "2s",
    }

"""The chart in the cluster, as a user would install it."""

import os
import subprocess
from functools import partial
from pathlib import Path

from cluster_access import Cluster
from control_plane import running_plane, wait_namespace_usable
from two_nodes import programs
from two_nodes.site import REPOSITORY, ClusterError, Site

CHART = REPOSITORY / "charts" / "quantfleet"
RELEASE, NAMESPACE = "quantfleet", "quantfleet-system"
LABELS = {"pod-security.kubernetes.io/enforce": "restricted"}
DEFINITION = "quantizationjobs.quantfleet.io"
MOST_SECONDS = 180


def install(site: Site) -> None:
    """Install or upgrade the chart with its defaults, and wait until all of it is ready."""
    cluster = running_plane(site.kubeconfig).cluster
    if cluster.find("namespaces", NAMESPACE) is None:
        cluster.create("namespaces", {"metadata": {"name": NAMESPACE, "labels": LABELS}})
        wait_namespace_usable(cluster, NAMESPACE)
    waiting = ("--wait", f"--timeout={MOST_SECONDS}s")
    _helm(site, cluster, "upgrade", "--install", RELEASE, str(CHART), *waiting)


def uninstall(site: Site) -> None:
    """Remove the release and with it all jobs; none is no error."""
    cluster = running_plane(site.kubeconfig).cluster
    _helm(site, cluster, "uninstall", RELEASE, "--ignore-not-found", "--wait")
    for plural, name in (("customresourcedefinitions", DEFINITION), ("namespaces", NAMESPACE)):
        cluster.delete(plural, name)
        gone = partial(_is_gone, cluster, plural, name)
        programs.wait_until(f"{name} gone", gone, seconds=MOST_SECONDS)


def _is_gone(cluster: Cluster, plural: str, name: str) -> bool:
    return cluster.find(plural, name) is None


def _helm(site: Site, cluster: Cluster, *arguments: str) -> None:
    home = site.folder / "tmp" / "helm"
    places = {f"HELM_{kind}_HOME": str(home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    program = Path(cluster.kubectl_program).with_name("helm")
    done = subprocess.run(
        [str(program), *arguments, "--namespace", NAMESPACE],
        env={**os.environ, **places, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise ClusterError(f"helm {' '.join(arguments)}: {done.stdout.strip()}")

"""The same cluster by kind, where a Docker engine runs; never run by its authors, who had none.

Its nodes are containers: what tests do to nodes of our own (stop a kubelet, cut a cable) cannot be
done to them, so tests of faults want QUANTFLEET_NODES=own.
"""

import base64
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from cluster_access import write_kubeconfig
from two_nodes.site import NODE_NUMBERS, ClusterError, Site, cache_folder

ACCOUNT = "quantfleet-tests"
TOKEN_SECONDS = 24 * 3600
READY_SECONDS = 180


def wanted() -> bool:
    """Whether a Docker engine answers, and nobody asked for nodes of our own."""
    asked = os.environ.get("QUANTFLEET_NODES", "")
    if asked not in ("", "own", "kind"):
        raise ClusterError(f"QUANTFLEET_NODES must be own or kind, got {asked}")
    if asked:
        return asked == "kind"
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0


def is_made(site: Site) -> bool:
    """Whether the cluster of this site was made by kind, in whole or in part."""
    return _mark(site).exists()


def up(site: Site) -> None:
    """Make the cluster and wait until its nodes are ready; one that is there is left alone."""
    if site.kubeconfig.exists() and is_made(site):
        return
    down(site)
    site.volumes.mkdir(parents=True)
    _mark(site).touch()  # first: what a crash leaves must be found
    private = site.folder / "kind.kubeconfig"
    options = ("--kubeconfig", str(private), f"--wait={READY_SECONDS}s", "--config=-")
    _run([_program("kind"), "create", "cluster", "--name", site.group, *options], _nodes(site))
    _write_kubeconfig(site, private)


def load(site: Site, archives: Sequence[Path]) -> None:
    """Import archives into all nodes."""
    for archive in archives:
        _run([_program("kind"), "load", "image-archive", str(archive), "--name", site.group])


def down(site: Site) -> None:
    """Remove the cluster or what is left of it."""
    if is_made(site):
        kubeconfig = ("--kubeconfig", str(site.folder / "kind.kubeconfig"))
        _run([_program("kind"), "delete", "cluster", "--name", site.group, *kubeconfig])
    shutil.rmtree(site.folder, ignore_errors=True)


def _mark(site: Site) -> Path:
    return site.folder / "made-by-kind"


def _nodes(site: Site) -> str:
    """One for the control plane, and two that see the cache folder where this machine has it."""
    mount = {"hostPath": str(site.folder.parent), "containerPath": str(site.folder.parent)}
    workers = [{"role": "worker", "extraMounts": [mount]} for _ in NODE_NUMBERS]
    kind = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4"}
    return yaml.safe_dump({**kind, "nodes": [{"role": "control-plane"}, *workers]})


def _write_kubeconfig(site: Site, private: Path) -> None:
    """For an admin with a token: kind's own holds a client certificate, which tests cannot use."""
    kubectl = [_program("kubectl"), "--kubeconfig", str(private), "--namespace", "kube-system"]
    _run([*kubectl, "create", "serviceaccount", ACCOUNT])
    role = ("--clusterrole=cluster-admin", f"--serviceaccount=kube-system:{ACCOUNT}")
    _run([*kubectl, "create", "clusterrolebinding", ACCOUNT, *role])
    token = _run([*kubectl, "create", "token", ACCOUNT, f"--duration={TOKEN_SECONDS}s"])
    where = yaml.safe_load(private.read_text())["clusters"][0]["cluster"]
    authority = site.folder / "authority.crt"
    authority.write_bytes(base64.b64decode(where["certificate-authority-data"]))
    write_kubeconfig(
        site.kubeconfig, server=where["server"], token=token.strip(), authority=authority
    )


def _program(name: str) -> str:
    program = cache_folder() / "kubernetes" / "bin" / name
    if not program.exists():
        raise ClusterError(f"{program} missing; run `make cluster-programs`")
    return str(program)


def _run(command: Sequence[str], given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout

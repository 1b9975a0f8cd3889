"""The chart and the helm that reads it."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane import ControlPlane, wait_namespace_usable

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "quantfleet"
KUBERNETES = "1.34.4"
RELEASE, NAMESPACE = "qf", "qf-system"


def helm(*arguments: str, check: bool = True, kubeconfig: Path | None = None) -> str:
    """Run helm; its output, both streams."""
    cache = Path(os.environ.get("QUANTFLEET_CACHE") or REPOSITORY / ".cache")
    program = cache / "kubernetes" / "bin" / "helm"
    if not program.exists():
        pytest.skip(f"{program} is missing: run `make kubernetes`")
    # without KUBECONFIG it would reach for whatever cluster somebody happens to work with
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)}
    done = subprocess.run(
        [str(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        env=environment,
    )
    if check and done.returncode:
        raise RuntimeError(f"helm {' '.join(arguments)}: {done.stdout}")
    return done.stdout


def rendered(*options: str) -> str:
    """What helm would install."""
    version = ("--kube-version", KUBERNETES)
    return helm("template", RELEASE, str(CHART), "-n", NAMESPACE, *version, *options)


def objects(*options: str) -> list[dict[str, Any]]:
    """The same, parsed."""
    return [found for found in yaml.safe_load_all(rendered(*options)) if found]


def of_kind(found: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The objects of one kind."""
    return [entry for entry in found if entry["kind"] == kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A release in a cluster, and how its operator gets in."""

    plane: ControlPlane
    release: str
    namespace: str

    @property
    def operator_user(self) -> str:
        """The user that the operator's service account is."""
        return f"system:serviceaccount:{self.namespace}:{self.release}-quantfleet-operator"

    @property
    def server_user(self) -> str:
        """The user that the status server's service account is."""
        return f"system:serviceaccount:{self.namespace}:{self.release}-quantfleet-server"

    @property
    def server_secret(self) -> str:
        """The Secret with the status server's certificate."""
        return f"{self.release}-quantfleet-server-tls"

    def token(self, part: str = "operator") -> str:
        """A token of the service account of operator or server, as its pod would have."""
        user = self.operator_user if part == "operator" else self.server_user
        account = user.rsplit(":", 1)[1]
        told = self.plane.cluster.kubectl("create", "token", account, "-n", self.namespace)
        return told.strip()

    def helm(self, command: str, *arguments: str) -> str:
        """A helm command about this release."""
        options = ("-n", self.namespace, *arguments)
        return helm(command, self.release, *options, kubeconfig=self.plane.cluster.kubeconfig)

    def deployment(self, part: str = "operator") -> dict[str, Any]:
        """The Deployment of operator or server, as the API server has it."""
        name = f"{self.release}-quantfleet-{part}"
        return self.plane.cluster.get("deployments", name, namespace=self.namespace)


def install(plane: ControlPlane, release: str, *options: str, chart: Path = CHART) -> Installed:
    """Install the chart into a namespace of the release's own, with restricted pod security."""
    namespace = f"{release}-system"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.cluster.create("namespaces", {"metadata": {"name": namespace, "labels": labels}})
    wait_namespace_usable(plane.cluster, namespace)
    installed = Installed(plane=plane, release=release, namespace=namespace)
    installed.helm("install", str(chart), *options)
    return installed

"""A real Kubernetes control plane on the loopback, ready in seconds; tests get it as `plane`.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler, and no kubelet: what a kubelet
would write, the test writes (pod_states.py), to pods that the real scheduler bound to nodes which
exist in name only.
"""

import json
import os
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

import child_process
from child_process import Child, wait_for
from cluster_access import Access, Cluster, Json, Refused, write_kubeconfig

ADMIN_TOKEN = "admin-token-of-a-test"
OPERATOR_TOKEN = "operator-token-of-a-test"
OPERATOR_USER = "operator-under-test"
"""As powerful as the admin, and told apart from it in the audit log."""
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
READY_SECONDS = 60.0
SERVICE_RANGE = "10.96.0.0/16"

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class MissingPrograms(Exception):
    """What `make kubernetes` builds is not there."""


def programs_folder() -> Path:
    """Where the programs lie; MissingPrograms says how to get them."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("QUANTFLEET_CACHE") or root / ".cache") / "kubernetes" / "bin"
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if missing:
        raise MissingPrograms(f"{', '.join(missing)} missing in {folder}: run `make kubernetes`")
    return folder


@dataclass(slots=True, kw_only=True)
class ControlPlane:
    """The running programs; the API server can be stopped and started again in between."""

    cluster: Cluster
    folder: Path
    programs: Path
    etcd_port: int
    children: dict[str, Child] = field(default_factory=dict)

    @property
    def audit_log(self) -> Path:
        """One JSON object a line, at level Metadata."""
        return self.folder / "audit.log"

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        assert self.cluster.access.authority is not None
        return self.cluster.access.authority

    @property
    def server(self) -> str:
        return self.cluster.access.server

    def stop_api(self) -> None:
        """Kill the API server, as a crash would."""
        child_process.kill(self.children.pop("kube-apiserver"))

    def start_api(self) -> None:
        """Start the API server on the same port, and wait until it is ready."""
        _start(self, "kube-apiserver", api_server_flags(self))
        _wait_ready(self)

    def audited(self, user: str) -> list[Json]:
        """Finished requests of a user, oldest first; a watch counts when it began."""
        with self.audit_log.open() as lines:
            entries = [json.loads(line) for line in lines if user in line and line.endswith("\n")]
        return [
            entry
            for entry in entries
            if entry["user"]["username"] == user
            and (entry["stage"] == "ResponseComplete") != (entry["verb"] == "watch")
        ]

    def kubeconfig(self, path: Path, *, token: str, server: str | None = None) -> Path:
        """A kubeconfig for another user, or through another door (a proxy)."""
        authority = self.authority if server is None or server.startswith("https") else None
        where = server or self.server
        return write_kubeconfig(path, server=where, token=token, authority=authority)


@contextmanager
def control_plane(folder: Path, *, before_controllers: list[Json]) -> Iterator[ControlPlane]:
    """Start all of it in `folder`, and stop all of it at the end.

    Objects in `before_controllers` (custom resource definitions) are created before the controllers
    start: the garbage collector looks for new kinds only every 30 s.
    """
    api_port, etcd_port = child_process.free_port(), child_process.free_port()
    plane = describe(folder, programs_folder(), api_port=api_port, etcd_port=etcd_port)
    masters = "system:masters"
    prepare(plane, {ADMIN_TOKEN: ("admin", masters), OPERATOR_TOKEN: (OPERATOR_USER, masters)})
    try:
        _start(plane, "etcd", etcd_flags(plane))
        plane.start_api()
        for definition in before_controllers:
            plane.cluster.create("customresourcedefinitions", definition)
            _wait_established(plane.cluster, definition["metadata"]["name"])
        _start(plane, "kube-controller-manager", controller_flags(plane))
        _start(plane, "kube-scheduler", scheduler_flags(plane))
        yield plane
    finally:
        for name in reversed(list(plane.children)):
            child_process.kill(plane.children[name])
        shutil.rmtree(folder / "etcd", ignore_errors=True)


def running_plane(kubeconfig: Path) -> ControlPlane:
    """A control plane that somebody else started and stops; it cannot be stopped from here."""
    loaded = yaml.safe_load(kubeconfig.read_text())
    where, who = loaded["clusters"][0]["cluster"], loaded["users"][0]["user"]
    authority = Path(where["certificate-authority"])
    programs = programs_folder()
    return ControlPlane(
        cluster=Cluster(
            access=Access(server=where["server"], token=who["token"], authority=authority),
            kubeconfig=kubeconfig,
            kubectl_program=str(programs / "kubectl"),
        ),
        folder=kubeconfig.parent,
        programs=programs,
        etcd_port=0,
    )


def describe(
    folder: Path,
    programs: Path,
    *,
    api_port: int,
    etcd_port: int,
    host: str = "127.0.0.1",
    token: str = ADMIN_TOKEN,
) -> ControlPlane:
    """The control plane of a folder, whether it runs or not; `host` is where its API listens."""
    access = Access(
        server=f"https://{host}:{api_port}",
        token=token,
        authority=folder / "certificates" / "apiserver.crt",
    )
    return ControlPlane(
        cluster=Cluster(
            access=access,
            kubeconfig=folder / "admin.kubeconfig",
            kubectl_program=str(programs / "kubectl"),
        ),
        folder=folder,
        programs=programs,
        etcd_port=etcd_port,
    )


def prepare(plane: ControlPlane, users: Mapping[str, tuple[str, str]]) -> None:
    """Write what the programs read; `users` are names and groups by token."""
    folder = plane.folder
    (folder / "certificates").mkdir(parents=True)
    rows = [f'{token},{user},{user},"{group}"\n' for token, (user, group) in users.items()]
    (folder / "tokens.csv").write_text("".join(rows))
    (folder / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
    key = str(folder / "service-accounts.key")
    making = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key]
    subprocess.run(making, check=True, capture_output=True)
    admin = plane.kubeconfig(plane.cluster.kubeconfig, token=plane.cluster.access.token)
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(_scheduler_configuration(admin)))


def _start(plane: ControlPlane, name: str, flags: dict[str, str]) -> None:
    command = command_line(plane.programs / name, flags)
    plane.children[name] = child_process.start(name, command, folder=plane.folder)


def command_line(program: Path, flags: Mapping[str, str]) -> list[str]:
    """The program and its flags, each in one word."""
    return [str(program), *[f"--{key}={value}" for key, value in flags.items()]]


def etcd_flags(plane: ControlPlane) -> dict[str, str]:
    client, peer = f"http://127.0.0.1:{plane.etcd_port}", "http://127.0.0.1:0"
    return {
        "data-dir": str(plane.folder / "etcd"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "unsafe-no-fsync": "true",
        "log-level": "error",
    }


def api_server_flags(plane: ControlPlane) -> dict[str, str]:
    folder, where = plane.folder, urlsplit(plane.server)
    return {
        "etcd-servers": f"http://127.0.0.1:{plane.etcd_port}",
        "bind-address": where.hostname or "",
        "secure-port": str(where.port),
        "cert-dir": str(folder / "certificates"),
        "token-auth-file": str(folder / "tokens.csv"),
        "authorization-mode": "Node,RBAC",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": str(folder / "service-accounts.key"),
        "service-account-signing-key-file": str(folder / "service-accounts.key"),
        "service-cluster-ip-range": SERVICE_RANGE,
        # it would refuse to publish a loopback address; nobody here reads the Service
        "endpoint-reconciler-type": "none",
        # it marks new nodes not-ready until a controller that is off here sees a heartbeat
        "disable-admission-plugins": "TaintNodesByCondition",
        "audit-policy-file": str(folder / "audit-policy.yaml"),
        "audit-log-path": str(plane.audit_log),
        "max-requests-inflight": "3000",
        "max-mutating-requests-inflight": "1000",
        "v": "1",
    }


def controller_flags(plane: ControlPlane) -> dict[str, str]:
    admin = str(plane.folder / "admin.kubeconfig")
    return {
        "kubeconfig": admin,
        "authentication-kubeconfig": admin,
        "authorization-kubeconfig": admin,
        # without heartbeats it would declare the nodes dead after 50 s
        "controllers": "*,-node-lifecycle-controller",
        "leader-elect": "false",
        "secure-port": "0",
        "root-ca-file": str(plane.authority),
        "service-account-private-key-file": str(plane.folder / "service-accounts.key"),
        "kube-api-qps": "1000",
        "kube-api-burst": "2000",
        "concurrent-job-syncs": "10",
        # a claim that it saw before its volume is bound at the next look
        "pvclaimbinder-sync-period": "1s",
        "v": "1",
    }


def scheduler_flags(plane: ControlPlane) -> dict[str, str]:
    return {"config": str(plane.folder / "scheduler.yaml"), "secure-port": "0", "v": "1"}


def _scheduler_configuration(kubeconfig: Path) -> Json:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
    }


def _wait_ready(plane: ControlPlane) -> None:
    child = plane.children["kube-apiserver"]

    def ready() -> bool:
        if not child.alive():
            raise RuntimeError(f"kube-apiserver ended:\n{child.tail()}")
        return answers(f"{plane.server}/readyz", plane.cluster.access)

    wait_for("kube-apiserver ready", ready, seconds=READY_SECONDS)


def answers(url: str, access: Access) -> bool:
    """Whether a GET as this user is answered with 200."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {access.token}"})
    try:
        trusted = ssl.create_default_context(cafile=access.authority)
        with urllib.request.urlopen(request, timeout=5, context=trusted) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):  # no certificate yet, no listener, not ready
        return False


def _wait_established(cluster: Cluster, name: str) -> None:
    def established() -> bool:
        status = cluster.get("customresourcedefinitions", name).get("status", {})
        return any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in status.get("conditions") or []
        )

    wait_for(f"{name} established", established)


def wait_namespace_usable(cluster: Cluster, namespace: str) -> None:
    """Until the namespace has its default account: pods are refused before."""

    def usable() -> bool:
        try:
            return cluster.find("serviceaccounts", "default", namespace=namespace) is not None
        except Refused:
            return False

    wait_for(f"default service account in {namespace}", usable)

"""Jobs whose workers are played by a test: the operator's part of the object is written by hand.

Used for the status server, which knows an object, an account and tokens, and nothing of pods.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_access import Cluster, Json
from control_plane import OPERATOR_TOKEN, ControlPlane
from quantfleet_api.names import child_name, token_audience
from quantfleet_api.report import job_path, server_audience
from quantization_jobs import manifest
from server_process import Client, ServerProcess, server_process

FAST = {
    "QUANTFLEET_CERTIFICATE_SECONDS": "1",
    "QUANTFLEET_TOKEN_CACHE_SECONDS": "1",
    "QUANTFLEET_WRITE_SECONDS": "2",
}
"""Settings with which tests need not wait; the defaults are ten times as long."""
_sequence = itertools.count(1)
_names = itertools.count(1)


def rank(number: int = 0, *, of: int = 2, stage: str = "Calibrating", **more: Any) -> Json:
    """A rank's report."""
    return {"rank": number, "worldSize": of, "stage": stage, **more}


def condition(kind: str, status: str, reason: str = "Test") -> Json:
    """A condition as the operator writes it."""
    time = "2026-11-30T12:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": time}


def token_of(
    cluster: Cluster,
    namespace: str,
    account: str,
    audience: str,
    *,
    seconds: int = 3600,
    bound: Json | None = None,
) -> str:
    """A token as the kubelet would fetch it."""
    spec: Json = {"audiences": [audience], "expirationSeconds": seconds}
    if bound is not None:
        spec["boundObjectRef"] = bound
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = cluster.access.call("POST", path, {"spec": spec})
    return str(answer["status"]["token"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """A job at some attempt, and whoever reports for it."""

    cluster: Cluster
    server: ServerProcess
    namespace: str
    name: str
    uid: str

    @property
    def path(self) -> str:
        return job_path(self.namespace, self.name)

    @property
    def account(self) -> str:
        return child_name(self.name, self.uid)

    def audience(self, attempt: int = 1) -> str:
        return token_audience(self.uid, attempt)

    def worker(self, attempt: int = 1) -> Client:
        """A worker of an attempt, with a token of its own."""
        token = token_of(self.cluster, self.namespace, self.account, self.audience(attempt))
        return self.server.client(token)

    def report(self, *ranks: Json, attempt: int = 1, pod: int = 0, **more: Any) -> Json:
        """A report that is newer than any before."""
        sequence = more.pop("sequence", None)
        return {
            "attempt": attempt,
            "pod": pod,
            "sequence": next(_sequence) if sequence is None else sequence,
            "ranks": list(ranks) or [rank()],
            **more,
        }

    def post(self, client: Client, *ranks: Json, **more: Any) -> Any:
        """Post a report; the answer."""
        return client.post(f"{self.path}/progress", self.report(*ranks, **more))

    def read(self) -> Json:
        return self.cluster.get("quantizationjobs", self.name, namespace=self.namespace)

    def progress(self) -> Json:
        """What the object says of progress, {} if nothing."""
        return dict(self.read()["status"].get("progress") or {})

    def write_status(self, **status: Any) -> None:
        """Write fields of the status, as the operator would."""
        self.cluster.patch(
            "quantizationjobs",
            self.name,
            {"status": status},
            namespace=self.namespace,
            sub="status",
        )

    def begin(self, attempt: int) -> None:
        """The next attempt begins."""
        self.write_status(attempt=attempt)

    def complete(self) -> None:
        """The job ends well."""
        self.write_status(conditions=[condition("Complete", "True")], phase="Succeeded")

    def delete(self) -> None:
        self.cluster.delete("quantizationjobs", self.name, namespace=self.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """A namespace, a server that watches it, and a reader who may read there."""

    cluster: Cluster
    namespace: str
    server: ServerProcess
    readers: dict[str, Client] = field(default_factory=dict)

    def submit(self, prefix: str = "job", *, attempt: int = 1, namespace: str = "") -> Reporting:
        """A job at an attempt, with the account of its workers."""
        where = namespace or self.namespace
        name = f"{prefix}-{next(_names)}"
        made = self.cluster.create("quantizationjobs", manifest(name), namespace=where)
        job = Reporting(
            cluster=self.cluster,
            server=self.server,
            namespace=where,
            name=name,
            uid=made["metadata"]["uid"],
        )
        account = {"metadata": {"name": job.account}}
        self.cluster.create("serviceaccounts", account, namespace=where)
        job.write_status(attempt=attempt, phase="Starting")
        return job

    def reader(self, role: str = "quantfleet-test-reader") -> Client:
        """Somebody who may read all jobs of the namespace."""
        if role not in self.readers:
            self.readers[role] = self.user("reader", ["get", "list"])
        return self.readers[role]

    def user(self, name: str, verbs: Sequence[str], *, only: Sequence[str] = ()) -> Client:
        """A service account with rights on jobs (`only` these), and a token for the server."""
        kubectl, where = self.cluster.kubectl, ("-n", self.namespace)
        kubectl("create", "serviceaccount", name, *where)
        if verbs:
            asked = ["--resource=quantizationjobs.quantfleet.io", f"--verb={','.join(verbs)}"]
            asked += [f"--resource-name={job}" for job in only]
            kubectl("create", "role", name, *asked, *where)
            bound = (f"--role={name}", f"--serviceaccount={self.namespace}:{name}")
            kubectl("create", "rolebinding", name, *bound, *where)
        return self.server.client(token_of(self.cluster, self.namespace, name, server_audience()))


@contextmanager
def open_server_place(
    plane: ControlPlane,
    namespace: str,
    folder: Path,
    *,
    token: str = OPERATOR_TOKEN,
    address: str | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[ServerPlace]:
    """A server for a namespace; `address` is a proxy to go through."""
    kubeconfig = plane.kubeconfig(folder / "kubeconfig", token=token, server=address)
    own = {**FAST, **(settings or {})}
    with server_process(kubeconfig, folder, namespaces=(namespace,), settings=own) as server:
        yield ServerPlace(cluster=plane.cluster, namespace=namespace, server=server)

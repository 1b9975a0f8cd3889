"""The API server as tests see it: plain dictionaries in, plain dictionaries out, errors by status.

The operator has its own door (cluster.py on the official client); what judges it goes another way.
"""

import json
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml

Json = dict[str, Any]

CORE = (
    "namespaces nodes pods services configmaps serviceaccounts events secrets resourcequotas "
    "limitranges persistentvolumeclaims persistentvolumes"
)
GROUPS = {
    **dict.fromkeys(CORE.split(), "api/v1"),
    "jobs": "apis/batch/v1",
    "deployments": "apis/apps/v1",
    "storageclasses": "apis/storage.k8s.io/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "customresourcedefinitions": "apis/apiextensions.k8s.io/v1",
    "quantizationjobs": "apis/quantfleet.io/v1alpha1",
}
CLUSTER_SCOPED = {
    *("namespaces", "nodes", "persistentvolumes", "storageclasses", "customresourcedefinitions"),
}
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Refused(Exception):
    """The API server's answer was an error; `status` is its HTTP status."""

    def __init__(self, status: int, message: str, body: Json) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message, self.body = status, message, body


def path_of(
    plural: str, name: str | None = None, *, namespace: str | None = None, sub: str | None = None
) -> str:
    """URL path of a collection, an object or a subresource."""
    parts = ["", GROUPS[plural]]
    if namespace is not None and plural not in CLUSTER_SCOPED:
        parts += ["namespaces", namespace]
    return "/".join([*parts, *[part for part in (plural, name, sub) if part is not None]])


@dataclass(frozen=True, kw_only=True)
class Access:
    """A way in: where, with which certificate, as whom."""

    server: str
    token: str
    authority: Path | None

    @cached_property
    def pool(self) -> urllib3.PoolManager:
        """Made at the first use: the API server writes its certificate when it starts."""
        trusted = ssl.create_default_context(cafile=self.authority) if self.authority else None
        return urllib3.PoolManager(
            maxsize=16, ssl_context=trusted, headers={"Authorization": f"Bearer {self.token}"}
        )

    def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Json:
        """One request; `Refused` for any status of 400 and above."""
        answer = self.pool.request(
            method,
            self.server + path + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body),
            headers={**self.pool.headers, "Content-Type": content},
            retries=False,
            timeout=60.0,
        )
        try:
            parsed: Json = json.loads(answer.data)
        except ValueError:
            parsed = {"message": answer.data.decode(errors="replace")}
        if answer.status >= 400:
            raise Refused(answer.status, parsed.get("message", ""), parsed)
        return parsed

    def watch(
        self, path: str, version: str, query: Mapping[str, str] | None = None, *, seconds: int = 300
    ) -> "Watch":
        """Events since a resource version, until the server ends the watch or we do."""
        asked = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        answer = self.pool.request(
            "GET",
            f"{self.server}{path}?{urlencode({**asked, **(query or {})})}",
            preload_content=False,
            retries=False,
            timeout=urllib3.Timeout(connect=10, read=seconds + 10),
        )
        return Watch(answer)


class Watch:
    """An open watch; another thread may stop it."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[Json]:
        rest = b""
        try:
            for chunk in self._answer.stream(None):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (json.loads(line) for line in lines if line)
        finally:
            self._answer.close()

    def stop(self) -> None:
        """End the iteration, from any thread."""
        self._answer.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster and its admin; what a test does to it starts here."""

    access: Access
    kubeconfig: Path
    kubectl_program: str

    def create(self, plural: str, body: Json, *, namespace: str | None = None) -> Json:
        return self.access.call("POST", path_of(plural, namespace=namespace), body)

    def get(self, plural: str, name: str, *, namespace: str | None = None) -> Json:
        return self.access.call("GET", path_of(plural, name, namespace=namespace))

    def find(self, plural: str, name: str, *, namespace: str | None = None) -> Json | None:
        """The object, or None where there is none."""
        try:
            return self.get(plural, name, namespace=namespace)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def list(
        self, plural: str, *, namespace: str | None = None, labels: str | None = None
    ) -> list[Json]:
        query = {"labelSelector": labels} if labels else None
        items = self.access.call("GET", path_of(plural, namespace=namespace), query=query)["items"]
        return list(items)

    def patch(
        self,
        plural: str,
        name: str,
        body: Json,
        *,
        namespace: str | None = None,
        sub: str | None = None,
        content: str = MERGE,
    ) -> Json:
        path = path_of(plural, name, namespace=namespace, sub=sub)
        return self.access.call("PATCH", path, body, content=content)

    def apply(
        self, plural: str, body: Json, *, namespace: str | None = None, owner: str = "test"
    ) -> Json:
        """Server-side apply."""
        path = path_of(plural, body["metadata"]["name"], namespace=namespace)
        query = {"fieldManager": owner, "force": "true"}
        return self.access.call("PATCH", path, body, query=query, content=APPLY)

    def delete(
        self, plural: str, name: str, *, namespace: str | None = None, options: Json | None = None
    ) -> None:
        """Delete; one that is gone already is no error."""
        try:
            self.access.call("DELETE", path_of(plural, name, namespace=namespace), options)
        except Refused as refused:
            if refused.status != 404:
                raise

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as the admin; its output, both streams."""
        done = subprocess.run(
            [self.kubectl_program, "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stdout}")
        return done.stdout


def write_kubeconfig(
    path: Path, *, server: str, token: str, authority: Path | None, namespace: str = "default"
) -> Path:
    """A kubeconfig of one user and one cluster."""
    cluster: Json = {"server": server}
    if authority is not None:
        cluster["certificate-authority"] = str(authority)
    context = {"cluster": "test", "user": "test", "namespace": namespace}
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": token}}],
                "contexts": [{"name": "test", "context": context}],
            }
        )
    )
    path.chmod(0o600)
    return path


def retry_conflicts(change: Callable[[], Json], *, attempts: int = 20) -> Json:
    """Repeat a read-change-write while somebody else was faster."""
    for _ in range(attempts - 1):
        try:
            return change()
        except Refused as refused:
            if refused.status != 409:
                raise
    return change()

"""QuantizationJobs on a real control plane: made, looked at, waited for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pod_states
from child_process import wait_for
from cluster_access import Cluster, Json, retry_conflicts
from quantfleet_api.names import child_name, job_name
from simulated_kubelet import Exit

CLAIMS = ("models", "data", "out")
DIGEST = "sha256:" + "5" * 64
PUBLISHED = json.dumps(
    {"manifestDigest": DIGEST, "sizeBytes": 123456, "fileCount": 7, "warnings": 2}
)
"""Termination message of a rank 0 that published."""


def manifest(
    name: str,
    *,
    workers: int = 2,
    policy: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    output_claim: str = "out",
) -> Json:
    """A job that asks for little; `options` are further fields of spec.workers."""
    return {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": {"pvc": {"claimName": "models", "path": "tiny"}}},
            "calibration": {
                "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
                "sampleCount": 8,
                "sequenceLength": 64,
            },
            "recipe": {"scheme": "W8A8", "weights": {"method": "RTN"}},
            "workers": {"count": workers, **(options or {})},
            "output": {"pvc": {"claimName": output_claim, "path": name}, "formats": ["Ascend"]},
            "runPolicy": dict(policy or {}),
        },
    }


def add_claims(
    cluster: Cluster,
    namespace: str,
    *,
    names: tuple[str, ...] = CLAIMS,
    modes: tuple[str, ...] = ("ReadWriteMany",),
) -> None:
    """Claims, those that `manifest` names if none are given, each bound to a volume of its own."""
    for claim in names:
        volume = f"{namespace}-{claim}"
        size = {"storage": "1Gi"}
        place = {
            "capacity": size,
            "accessModes": list(modes),
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": claim},
            "csi": {"driver": "none.invalid", "volumeHandle": volume},
        }
        cluster.create("persistentvolumes", {"metadata": {"name": volume}, "spec": place})
        asked = {
            "accessModes": list(modes),
            "storageClassName": "",
            "volumeName": volume,
            "resources": {"requests": size},
        }
        body = {"metadata": {"name": claim}, "spec": asked}
        cluster.create("persistentvolumeclaims", body, namespace=namespace)

    def bound() -> bool:
        found = cluster.list("persistentvolumeclaims", namespace=namespace)
        return all(claim["status"].get("phase") == "Bound" for claim in found)

    # a pod that is scheduled before is held back for seconds
    wait_for(f"claims of {namespace} bound", bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """One QuantizationJob in a cluster; everything is read anew at each call."""

    cluster: Cluster
    namespace: str
    name: str
    uid: str

    def read(self) -> Json:
        return self.cluster.get("quantizationjobs", self.name, namespace=self.namespace)

    def status(self) -> Json:
        return dict(self.read().get("status", {}))

    def condition(self, kind: str) -> Json:
        """The condition of a type, {} if there is none yet."""
        found = [c for c in self.status().get("conditions", []) if c["type"] == kind]
        return dict(found[0]) if found else {}

    def job(self, attempt: int) -> Json | None:
        """The Job of an attempt, or None."""
        name = job_name(self.name, self.uid, attempt)
        return self.cluster.find("jobs", name, namespace=self.namespace)

    def jobs(self) -> list[Json]:
        """All Jobs that this object owns, ever so old."""
        found = self.cluster.list("jobs", namespace=self.namespace)
        return [job for job in found if pod_states.owner_of(job) == self.uid]

    def pods(self) -> list[Json]:
        labels = f"quantfleet.io/job-uid={self.uid}"
        found = self.cluster.list("pods", namespace=self.namespace, labels=labels)
        return sorted(
            found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
        )

    def children(self) -> set[tuple[str, str]]:
        """(plural, name) of every object with this object as its controller."""
        kinds = ("jobs", "services", "configmaps", "serviceaccounts", "networkpolicies")
        return {
            (plural, child["metadata"]["name"])
            for plural in kinds
            for child in self.cluster.list(plural, namespace=self.namespace)
            if pod_states.owner_of(child) == self.uid
        }

    def child_name(self) -> str:
        return child_name(self.name, self.uid)

    def wait_job(self, attempt: int, *, seconds: float = 60.0) -> Json:
        """The Job of an attempt, once it exists."""
        what = f"Job of attempt {attempt} of {self.name}"
        return self._wait(what, lambda: self.job(attempt), seconds)

    def wait_condition(
        self, kind: str, status: str = "True", *, reason: str | None = None, seconds: float = 60.0
    ) -> Json:
        """The condition, once it has this status (and reason)."""

        def found() -> Json | None:
            condition = self.condition(kind)
            right = condition.get("status") == status
            return condition if right and reason in (None, condition["reason"]) else None

        return self._wait(f"{kind}={status} ({reason or 'any reason'})", found, seconds)

    def wait_running(self, attempt: int) -> list[Json]:
        """Let the pods of an attempt run, and wait until the operator says so."""
        pods = pod_states.run_pods(self.cluster, self.wait_job(attempt))
        self.wait_condition("WorkersReady")
        return pods

    def wait_gone(self, attempt: int, *, seconds: float = 60.0) -> None:
        self._wait(f"Job of attempt {attempt} gone", lambda: self.job(attempt) is None, seconds)

    def change(self, **policy: Any) -> None:
        """Change fields of spec.runPolicy."""
        body = {"spec": {"runPolicy": policy}}
        retry_conflicts(
            lambda: self.cluster.patch(
                "quantizationjobs", self.name, body, namespace=self.namespace
            )
        )

    def delete(self) -> None:
        options = {"propagationPolicy": "Background"}
        self.cluster.delete(
            "quantizationjobs", self.name, namespace=self.namespace, options=options
        )

    def events(self) -> list[Json]:
        """Events about this object, oldest first."""
        found = self.cluster.list("events", namespace=self.namespace)
        own = [event for event in found if event["involvedObject"].get("uid") == self.uid]
        return sorted(own, key=lambda event: int(event["metadata"]["resourceVersion"]))

    def _wait(self, what: str, condition: Any, seconds: float) -> Any:
        try:
            return wait_for(what, condition, seconds=seconds)
        except TimeoutError as late:
            found = self.cluster.find("quantizationjobs", self.name, namespace=self.namespace)
            told = json.dumps((found or {}).get("status"), indent=1)
            raise TimeoutError(f"{late}\nstatus of {self.name}: {told}") from late


def submit(cluster: Cluster, namespace: str, body: Json) -> Quantization:
    """Create a QuantizationJob."""
    made = cluster.create("quantizationjobs", body, namespace=namespace)
    meta = made["metadata"]
    return Quantization(cluster=cluster, namespace=namespace, name=meta["name"], uid=meta["uid"])


def publishes(pod: Json) -> Exit:
    """Behaviour of pods whose gang succeeds: rank 0 publishes, the others leave with 0."""
    rank_0 = pod_states.index_of(pod) == 0
    return Exit(code=0, message=PUBLISHED if rank_0 else "", after_seconds=0.0 if rank_0 else 0.3)

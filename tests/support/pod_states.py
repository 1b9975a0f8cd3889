"""What a kubelet would write: pods that run, end, are evicted or lost with their node, set by hand.

Nodes exist in name only; the real scheduler binds pods to them.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from child_process import wait_for
from cluster_access import STRATEGIC, Cluster, Json, Refused

INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
LOST = "quantfleet.test/node-lost"
"""Annotation of a pod whose node is gone: no kubelet will ever report on it again."""
KILLED = 137
TERMINATED = 143


def now() -> str:
    """Now, as the API server writes times (it keeps whole seconds)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def add_nodes(cluster: Cluster, count: int, *, capacity: dict[str, str] | None = None) -> None:
    """Ready nodes `node-0` ... with room for everything; there are no machines behind them."""
    room = {"cpu": "4000", "memory": "8000Gi", "pods": "10000", "ephemeral-storage": "8000Gi"}
    for index in range(count):
        name = f"node-{index}"
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        cluster.create("nodes", {"metadata": {"name": name, "labels": labels}})
        offered = {**room, **(capacity or {})}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": now()}
        status = {"capacity": offered, "allocatable": offered, "conditions": [ready]}
        cluster.patch("nodes", name, {"status": status}, sub="status")


def pods_of(cluster: Cluster, job: Json) -> list[Json]:
    """Pods that the job controls, by index."""
    meta = job["metadata"]
    pods = cluster.list("pods", namespace=meta["namespace"], labels=f"{JOB_NAME}={meta['name']}")
    owned = [pod for pod in pods if owner_of(pod) == meta["uid"]]
    return sorted(owned, key=index_of)


def owner_of(pod: Json) -> str | None:
    """UID of the controller of a pod."""
    owners = pod["metadata"].get("ownerReferences", [])
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def index_of(pod: Json) -> int:
    return int(pod["metadata"].get("annotations", {}).get(INDEX, 0))


def bound_pods(cluster: Cluster, job: Json) -> list[Json]:
    """Wait until the job has all its pods and the scheduler has bound them."""

    def bound() -> list[Json] | None:
        pods = [pod for pod in pods_of(cluster, job) if "deletionTimestamp" not in pod["metadata"]]
        wanted = job["spec"]["parallelism"]
        done = len(pods) == wanted and all(pod["spec"].get("nodeName") for pod in pods)
        return pods if done else None

    return wait_for(f"pods of {job['metadata']['name']} bound", bound)


def run_pods(cluster: Cluster, job: Json) -> list[Json]:
    """Wait for the job's pods and let all of them run and be ready."""
    return [run_pod(cluster, pod) for pod in bound_pods(cluster, job)]


def run_pod(cluster: Cluster, pod: Json, *, ready: bool = True) -> Json:
    """The containers of a bound pod run."""
    started = {"running": {"startedAt": now()}}
    status = {
        "phase": "Running",
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "startTime": now(),
        "conditions": [_condition("Ready", ready), _condition("ContainersReady", ready)],
        "containerStatuses": _containers(pod, started, ready=ready),
    }
    return _write(cluster, pod, status)


def waiting(cluster: Cluster, pod: Json, *, reason: str, message: str = "") -> Json:
    """The containers cannot start, e.g. reason ImagePullBackOff."""
    state = {"waiting": {"reason": reason, "message": message}}
    status = {
        "phase": "Pending",
        "conditions": [_condition("Ready", False), _condition("ContainersReady", False)],
        "containerStatuses": _containers(pod, state, ready=False),
    }
    return _write(cluster, pod, status)


def finish(
    cluster: Cluster,
    pod: Json,
    exit_code: int,
    *,
    message: str = "",
    reason: str | None = None,
    finished_at: str | None = None,
) -> Json:
    """The containers end; what Kubernetes remembers of them is this."""
    ended = finished_at or now()
    terminated: dict[str, Any] = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "startedAt": pod.get("status", {}).get("startTime") or ended,
        "finishedAt": ended,
    }
    if message:
        terminated["message"] = message
    status = {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "conditions": [_condition("Ready", False), _condition("ContainersReady", False)],
        "containerStatuses": _containers(pod, {"terminated": terminated}, ready=False),
    }
    return _write(cluster, pod, status)


def complete(cluster: Cluster, job: Json, *, message: str = "") -> None:
    """Rank 0 ends with 0 and this termination message."""
    finish(cluster, pods_of(cluster, job)[0], 0, message=message)


def evict(cluster: Cluster, pod: Json) -> None:
    """Evict by the API, as a drain does: DisruptionTarget, then a graceful deletion.

    A simulated kubelet ends the pod; without one it stays Running with a deletionTimestamp.
    """
    meta = pod["metadata"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
    cluster.access.call("POST", path, body)


def forget(cluster: Cluster, pod: Json) -> None:
    """The simulated kubelet leaves this pod to the test from now on, as if its node were gone."""
    meta = pod["metadata"]
    body = {"metadata": {"annotations": {LOST: "true"}}}
    cluster.patch("pods", meta["name"], body, namespace=meta["namespace"])


def lose_node(cluster: Cluster, pod: Json, *, grace_seconds: int = 30) -> None:
    """The pod's node is gone: its deletion is asked for, and nobody ever carries it out."""
    meta = pod["metadata"]
    forget(cluster, pod)
    reason = "DeletionByTaintManager"
    _write(cluster, pod, {"conditions": [_condition("DisruptionTarget", True, reason=reason)]})
    options = {"gracePeriodSeconds": grace_seconds}
    cluster.delete("pods", meta["name"], namespace=meta["namespace"], options=options)


def terminate(cluster: Cluster, pod: Json, *, exit_code: int = TERMINATED) -> None:
    """What a kubelet does with a pod that is being deleted: end it, report, let it go."""
    meta = pod["metadata"]
    latest = cluster.find("pods", meta["name"], namespace=meta["namespace"])
    if latest is None or latest["metadata"]["uid"] != meta["uid"]:
        return
    try:
        if latest["status"].get("phase") not in ("Succeeded", "Failed"):
            finish(cluster, latest, exit_code)
        cluster.delete(
            "pods",
            meta["name"],
            namespace=meta["namespace"],
            options={"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}},
        )
    except Refused as refused:
        if refused.status not in (404, 409):  # gone, or another pod of that name
            raise


def _condition(kind: str, true: bool, *, reason: str | None = None) -> Json:
    condition = {
        "type": kind,
        "status": "True" if true else "False",
        "lastTransitionTime": now(),
    }
    return condition if reason is None else {**condition, "reason": reason}


def _containers(pod: Json, state: Json, *, ready: bool) -> list[Json]:
    return [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"test/{container['image']}",
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]


def _write(cluster: Cluster, pod: Json, status: Json) -> Json:
    meta = pod["metadata"]
    # the UID is a precondition: a status must not land on a later pod of the same name
    body = {"metadata": {"uid": meta["uid"]}, "status": status}
    return cluster.patch(
        "pods", meta["name"], body, namespace=meta["namespace"], sub="status", content=STRATEGIC
    )


def ago(seconds: float) -> str:
    """A time in the past, as the API server writes times."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

"""Pods of a shell, for tests of the cluster itself; they keep the restricted standard."""

from cluster_access import Cluster, Json

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
FOREVER = "busybox httpd -f -p 8080"
"""Serves, so that others can try to reach it."""


def template(image: str, script: str, *, node: str | None = None, app: str = "test") -> Json:
    """Labels and specification of a pod that runs a script."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["busybox", "sh", "-ec", script],
        "securityContext": RESTRICTED,
    }
    spec: Json = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": {"labels": {"app": app}}, "spec": spec}


def start(cluster: Cluster, namespace: str, name: str, body: Json) -> None:
    """Create a pod from a template."""
    metadata = {**body["metadata"], "name": name}
    cluster.create("pods", {**body, "metadata": metadata}, namespace=namespace)


def address(cluster: Cluster, namespace: str, name: str) -> str | None:
    """A running pod's address."""
    status = cluster.get("pods", name, namespace=namespace)["status"]
    return status.get("podIP") if status.get("phase") == "Running" else None


def reaches(cluster: Cluster, namespace: str, name: str, target: str, port: int) -> bool:
    """Whether a pod gets a connection to an address within two seconds."""
    connect = f"busybox timeout 4 busybox nc -w 2 {target} {port}"
    probe = f"{connect} </dev/null >/dev/null && echo open || echo shut"
    told = cluster.kubectl("exec", "-n", namespace, name, "--", "busybox", "sh", "-c", probe)
    return told.strip().endswith("open")

"""The template of worker pods: no rights, a restricted security context, claims and shared memory.

Only what the manifest's allow-list names comes from the job (rule C21).
"""

from typing import Any

from quantfleet_api.claims import claims_of
from quantfleet_api.names import (
    ATTEMPT_LABEL,
    JOB_UID_LABEL,
    attempt_labels,
    child_name,
    token_audience,
)
from quantfleet_api.pods import Affinity, Resources
from quantfleet_api.report import progress_url
from quantfleet_api.spec import JobSpec, RunPolicy, Workers
from quantfleet_operator.admission import Admitted
from quantfleet_operator.manifests.environment import (
    CONFIG_FOLDER,
    MASTER_PORT,
    TOKEN_FOLDER,
    VOLUMES_FOLDER,
    backend_of,
    environment,
)
from quantfleet_operator.manifests.identity import Manifest
from quantfleet_operator.observed import WORKER_CONTAINER
from quantfleet_operator.settings import Settings

WORKER_USER = 1000
"""User and group of workers; images of accelerator vendors use the same."""
NODE_LOSS_SECONDS = 30
"""How long a pod stays on a node that does not answer (rule C1)."""
TOKEN_SECONDS = 3600
BEGIN_SECONDS = 3600
"""How long workers wait for each other where the job sets no preRunningDeadlineSeconds."""
SHARED_MEMORY = "1Gi"
SHARED_MEMORY_WITH_DEVICES = "16Gi"
"""Upper limits of /dev/shm where the job names none; collectives of devices stage there."""


def pod_template(job: Admitted, attempt: int, settings: Settings) -> Manifest:
    """The template of an attempt's Job."""
    workers = job.spec.workers
    labels = dict(workers.labels) | attempt_labels(job.name, job.uid, attempt)
    metadata: Manifest = {"labels": labels}
    if workers.annotations:
        metadata["annotations"] = dict(workers.annotations)
    return {"metadata": metadata, "spec": _pod_spec(job, attempt, settings)}


def _pod_spec(job: Admitted, attempt: int, settings: Settings) -> Manifest:
    workers, name = job.spec.workers, child_name(job.name, job.uid)
    spec: Manifest = {
        "restartPolicy": "Never",
        "subdomain": name,
        "serviceAccountName": name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": WORKER_USER,
            "runAsGroup": WORKER_USER,
            "fsGroup": WORKER_USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": _tolerations(workers),
        "containers": [_container(job, attempt, settings)],
        "volumes": _volumes(job, attempt, settings),
    }
    affinity = _affinity(job, attempt)
    if affinity:
        spec["affinity"] = affinity
    if workers.node_selector:
        spec["nodeSelector"] = dict(workers.node_selector)
    if workers.priority_class_name:
        spec["priorityClassName"] = workers.priority_class_name
    if workers.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in workers.image_pull_secrets]
    return spec


def _container(job: Admitted, attempt: int, settings: Settings) -> Manifest:
    workers = job.spec.workers
    has_authority = bool(settings.progress_ca or settings.server_secret)
    url = progress_url(settings.progress_url, job.namespace, job.name)
    progress = (url, has_authority) if settings.progress_url else None
    container: Manifest = {
        "name": WORKER_CONTAINER,
        "image": job.image,
        "command": ["python", "-m", "quantfleet_worker"],
        "env": environment(
            workers,
            name=job.name,
            uid=job.uid,
            namespace=job.namespace,
            attempt=attempt,
            begin_seconds=_begin_seconds(job.spec.run_policy),
            progress=progress,
        ),
        "ports": [{"name": "rendezvous", "containerPort": MASTER_PORT, "protocol": "TCP"}],
        "resources": _resources(workers),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(job.spec, settings),
    }
    if workers.image_pull_policy:
        container["imagePullPolicy"] = workers.image_pull_policy
    return container


def _begin_seconds(policy: RunPolicy) -> int:
    """The operator's own deadline began earlier, so where a pod never runs it comes first."""
    return policy.pre_running_deadline_seconds or BEGIN_SECONDS


def _resources(workers: Workers) -> Manifest:
    asked = workers.resources or Resources()
    requests, limits = dict(asked.requests), dict(asked.limits)
    if workers.device_resource_name and workers.devices_per_worker:
        amount = str(workers.devices_per_worker)
        requests[workers.device_resource_name] = limits[workers.device_resource_name] = amount
    return {
        kind: amounts for kind, amounts in (("requests", requests), ("limits", limits)) if amounts
    }


def _claims(spec: JobSpec) -> dict[str, bool]:
    return claims_of(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


def _mounts(spec: JobSpec, settings: Settings) -> list[Manifest]:
    mounts: list[Manifest] = [
        {"name": "job", "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    for number, (claim, read_only) in enumerate(_claims(spec).items()):
        mount: Manifest = {"name": f"claim-{number}", "mountPath": f"{VOLUMES_FOLDER}/{claim}"}
        mounts.append(mount | ({"readOnly": True} if read_only else {}))
    if settings.progress_url:
        mounts.append({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    return mounts


def _volumes(job: Admitted, attempt: int, settings: Settings) -> list[Manifest]:
    workers = job.spec.workers
    default = SHARED_MEMORY_WITH_DEVICES if workers.devices_per_worker else SHARED_MEMORY
    size = workers.shared_memory or default
    volumes: list[Manifest] = [
        {"name": "job", "configMap": {"name": child_name(job.name, job.uid)}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}},
    ]
    volumes += [
        {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(_claims(job.spec))
    ]
    if settings.progress_url:
        token = {
            "audience": token_audience(job.uid, attempt),
            "expirationSeconds": TOKEN_SECONDS,
            "path": "token",
        }
        sources = [{"serviceAccountToken": token}]
        volumes.append({"name": "token", "projected": {"sources": sources}})
    return volumes


def _tolerations(workers: Workers) -> list[Manifest]:
    own = [
        item.model_dump(mode="json", by_alias=True, exclude_none=True)
        for item in workers.tolerations
    ]
    lost = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": NODE_LOSS_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]
    return [*lost, *({key: value for key, value in item.items() if value != ""} for item in own)]


def _affinity(job: Admitted, attempt: int) -> Manifest:
    """The job's own affinity; on NPUs also: no two workers of an attempt on one node.

    Collectives between several pods of one node are not supported there: their device plugin takes
    a pod for a server.
    """
    own = job.spec.workers.affinity or Affinity()
    affinity = _without_empty(own.model_dump(mode="json", by_alias=True, exclude_none=True))
    if backend_of(job.spec.workers) != "HCCL" or job.count == 1:
        return affinity
    term = {
        "labelSelector": {"matchLabels": {JOB_UID_LABEL: job.uid, ATTEMPT_LABEL: str(attempt)}},
        "topologyKey": "kubernetes.io/hostname",
    }
    apart = affinity.setdefault("podAntiAffinity", {})
    apart.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)
    return affinity


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    """Without empty lists and mappings below the top, which the API server would drop anyway.

    An empty label selector stays: it means every pod, an absent one none.
    """
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            inner = _without_empty(value)
            if inner or key.endswith("Selector") or key.endswith("preference"):
                kept[key] = inner
        elif isinstance(value, list):
            if value:
                kept[key] = [_without_empty(i) if isinstance(i, dict) else i for i in value]
        else:
            kept[key] = value
    return kept

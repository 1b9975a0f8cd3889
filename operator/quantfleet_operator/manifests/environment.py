"""The environment of a worker's container.

Rank = completion index of the pod x processes a pod + local rank; the process that starts a pod's
ranks computes it. What the operator sets of the contract cannot be overridden by a job; options of
the communication libraries can.
"""

from collections.abc import Mapping
from typing import Literal

from quantfleet_api.names import master_address
from quantfleet_api.spec import Workers

MASTER_PORT = 29500
CONFIG_FOLDER = "/etc/quantfleet"
VOLUMES_FOLDER = "/volumes"
TOKEN_FOLDER = "/var/run/secrets/quantfleet"
EXEC_SECONDS = 3600
"""How long HCCL waits for one transfer."""
POD_NETWORK = "eth0"
"""The interface of the pod network, by the convention of container runtimes."""

RESERVED_VARIABLES = frozenset(
    {
        "QUANTFLEET_SPEC",
        "QUANTFLEET_ATTEMPT",
        "QUANTFLEET_BEGIN_SECONDS",
        "QUANTFLEET_JOB_UID",
        "QUANTFLEET_VOLUMES",
        "QUANTFLEET_TERMINATION_LOG",
        "QUANTFLEET_POD_NAME",
        "QUANTFLEET_NODE_NAME",
        "QUANTFLEET_PROGRESS_URL",
        "QUANTFLEET_PROGRESS_CA_FILE",
        "QUANTFLEET_PROGRESS_TOKEN_FILE",
        "JOB_COMPLETION_INDEX",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NNODES",
        "NPROC_PER_NODE",
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "HOME",
        "TMPDIR",
    }
)
Variable = dict[str, object]
Backend = Literal["HCCL", "NCCL", "Gloo"]


def backend_of(workers: Workers) -> Backend:
    """The backend that a job uses; Auto goes by the vendor of its devices."""
    if workers.backend != "Auto":
        return workers.backend
    vendor = (workers.device_resource_name or "").split("/")[0]
    known: dict[str, Backend] = {"huawei.com": "HCCL", "nvidia.com": "NCCL"}
    return known.get(vendor, "Gloo")


def library_options(workers: Workers, *, begin_seconds: int) -> dict[str, str]:
    """Defaults of the communication libraries; a job's own variables win."""
    options = {
        "GLOO_SOCKET_IFNAME": POD_NETWORK,
        "OMP_NUM_THREADS": str(workers.threads_per_process),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    match backend_of(workers):
        case "HCCL":
            options |= {
                "HCCL_SOCKET_IFNAME": POD_NETWORK,
                "HCCL_CONNECT_TIMEOUT": str(_connect_seconds(begin_seconds)),
                "HCCL_EXEC_TIMEOUT": str(EXEC_SECONDS),
                "HCCL_DETERMINISTIC": "true",  # equal sums in every run
            }
        case "NCCL":
            options |= {"NCCL_SOCKET_IFNAME": POD_NETWORK, "NCCL_DEBUG": "WARN"}
        case "Gloo":
            pass
    return options


def _connect_seconds(begin_seconds: int) -> int:
    """At least the library's own default, and never beyond what it waits for a transfer."""
    return min(max(begin_seconds, 120), EXEC_SECONDS)


def environment(
    workers: Workers,
    *,
    name: str,
    uid: str,
    namespace: str,
    attempt: int,
    begin_seconds: int,
    progress: tuple[str, bool] | None,
) -> list[Variable]:
    """All variables of the container, in an order that does not change.

    `begin_seconds` is how long the pods of an attempt wait for each other. `progress` is where to
    report and whether certificates to trust are mounted; None = nowhere.
    """
    count, processes = workers.count or 1, workers.processes_per_worker
    contract = {
        "QUANTFLEET_SPEC": f"{CONFIG_FOLDER}/job.json",
        "QUANTFLEET_ATTEMPT": str(attempt),
        "QUANTFLEET_JOB_UID": uid,
        "QUANTFLEET_VOLUMES": VOLUMES_FOLDER,
        "QUANTFLEET_BEGIN_SECONDS": str(begin_seconds),
        "MASTER_ADDR": master_address(name, uid, attempt, namespace),
        "MASTER_PORT": str(MASTER_PORT),
        "NNODES": str(count),
        "NPROC_PER_NODE": str(processes),
        "WORLD_SIZE": str(count * processes),
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
    }
    options = library_options(workers, begin_seconds=begin_seconds)
    return [
        *_literals(contract | _reporting(progress) | options | _own(workers)),
        _from_field("QUANTFLEET_POD_NAME", "metadata.name"),
        _from_field("QUANTFLEET_NODE_NAME", "spec.nodeName"),
    ]


def _reporting(progress: tuple[str, bool] | None) -> dict[str, str]:
    if progress is None:
        return {}
    url, has_ca = progress
    found = {
        "QUANTFLEET_PROGRESS_URL": url,
        "QUANTFLEET_PROGRESS_TOKEN_FILE": f"{TOKEN_FOLDER}/token",
    }
    return found | ({"QUANTFLEET_PROGRESS_CA_FILE": f"{CONFIG_FOLDER}/ca.crt"} if has_ca else {})


def _own(workers: Workers) -> dict[str, str]:
    return {variable.name: variable.value for variable in workers.env}


def _literals(values: Mapping[str, str]) -> list[Variable]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _from_field(name: str, path: str) -> Variable:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

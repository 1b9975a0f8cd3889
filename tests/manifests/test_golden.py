"""Every child object as it is sent, compared with reviewed files in `golden/`.

After a wanted change: `QUANTFLEET_WRITE_GOLDEN=1 pytest tests/manifests`, and review the diff.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from quantfleet_operator.admission import Admitted, admit
from quantfleet_operator.manifests.config_map import config_map
from quantfleet_operator.manifests.job import attempt_job
from quantfleet_operator.manifests.network_policy import network_policy
from quantfleet_operator.manifests.service import service
from quantfleet_operator.manifests.service_account import service_account
from quantfleet_operator.settings import Settings
from reconcile_builders import SETTINGS, spec, view

GOLDEN = Path(__file__).parent / "golden"
REPORTING = replace(
    SETTINGS,
    progress_url="https://quantfleet-server.quantfleet.svc:8443",
    progress_ca="-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n",
)


class _Readable(yaml.SafeDumper):
    """YAML to be read: no references, and texts of several lines as such."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    style = "|" if "\n" in data else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Readable.add_representer(str, _text)


def with_workers(**workers: Any) -> dict[str, Any]:
    plain = spec()
    return plain | {"workers": plain["workers"] | workers}


NPU = with_workers(
    count=4,
    processesPerWorker=8,
    threadsPerProcess=4,
    deviceResourceName="huawei.com/Ascend910",
    devicesPerWorker=8,
    image="registry.invalid/worker-npu:2",
    imagePullPolicy="IfNotPresent",
    imagePullSecrets=[{"name": "registry"}],
    resources={"requests": {"cpu": "64", "memory": "512Gi"}, "limits": {"memory": "512Gi"}},
    nodeSelector={"accelerator": "huawei-Ascend910"},
    tolerations=[{"key": "npu", "operator": "Exists", "effect": "NoSchedule"}],
    affinity={
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 10, "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/rack"}}
            ]
        }
    },
    priorityClassName="batch",
    labels={"team": "compression"},
    annotations={"example.com/cost": "shared"},
    env=[{"name": "HCCL_CONNECT_TIMEOUT", "value": "1200"}],
    sharedMemory="64Gi",
)
SHARED_CLAIM = spec() | {
    "output": {"pvc": {"claimName": "models", "path": "tiny-w8a8"}, "formats": ["Ascend"]}
}
GPU = with_workers(deviceResourceName="nvidia.com/gpu", devicesPerWorker=1)
CASES: dict[str, tuple[dict[str, Any], Settings]] = {
    "cpu": (spec(), SETTINGS),
    "npu": (NPU, SETTINGS),
    "gpu": (GPU, SETTINGS),
    "reporting": (spec(), REPORTING),
    "one-claim": (SHARED_CLAIM, SETTINGS),
}
BUILDERS: dict[str, Callable[[Admitted, Settings], dict[str, Any]]] = {
    "service": lambda job, _: service(job),
    "service-account": lambda job, _: service_account(job),
    "config-map": config_map,
    "network-policy": network_policy,
    "job": lambda job, settings: attempt_job(job, 3, settings),
}


def built(case: str) -> list[dict[str, Any]]:
    text, settings = CASES[case]
    job = admit(replace(view(), spec=text), settings)
    return [build(job, settings) for build in BUILDERS.values()]


@pytest.mark.parametrize("case", CASES)
def test_children_are_the_reviewed_ones(case: str) -> None:
    text = yaml.dump_all(built(case), Dumper=_Readable, sort_keys=True, width=100)
    path = GOLDEN / f"{case}.yaml"
    if os.environ.get("QUANTFLEET_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def pod(case: str) -> dict[str, Any]:
    template: dict[str, Any] = built(case)[-1]["spec"]["template"]["spec"]
    return template


def environment(case: str) -> dict[str, str]:
    (container,) = pod(case)["containers"]
    return {item["name"]: item.get("value", "") for item in container["env"]}


@pytest.mark.parametrize("case", CASES)
def test_l9_workers_have_no_rights_and_no_token_for_the_api_server(case: str) -> None:
    spec = pod(case)
    assert spec["automountServiceAccountToken"] is False
    tokens = [
        source["serviceAccountToken"]
        for volume in spec["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
    ]
    audiences = {token["audience"] for token in tokens}
    wanted = {"quantfleet/0123abcd-0000-4000-8000-000000000000/3"} if case == "reporting" else set()
    assert audiences == wanted


@pytest.mark.parametrize("case", CASES)
def test_c21_no_path_of_a_host_and_no_privilege(case: str) -> None:
    spec = pod(case)
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_claims_are_read_only_unless_the_output_lies_there() -> None:
    def modes(case: str) -> dict[str, bool]:
        (container,) = pod(case)["containers"]
        mounts = container["volumeMounts"]
        return {
            mount["mountPath"]: mount.get("readOnly", False)
            for mount in mounts
            if mount["mountPath"].startswith("/volumes/")
        }

    assert modes("cpu") == {"/volumes/models": True, "/volumes/data": True, "/volumes/out": False}
    assert modes("one-claim") == {"/volumes/models": False, "/volumes/data": True}


def test_a_jobs_own_variables_win_over_options_of_libraries() -> None:
    assert environment("npu")["HCCL_CONNECT_TIMEOUT"] == "1200"
    assert environment("npu")["HCCL_DETERMINISTIC"] == "true"
    assert "NCCL_SOCKET_IFNAME" in environment("gpu")
    assert not [name for name in environment("cpu") if name.startswith(("HCCL", "NCCL"))]


def test_ranks_are_pods_times_processes() -> None:
    names = ("NNODES", "NPROC_PER_NODE", "WORLD_SIZE", "QUANTFLEET_ATTEMPT")
    assert [environment("npu")[name] for name in names] == ["4", "8", "32", "3"]
    master = environment("npu")["MASTER_ADDR"]
    assert master == "tiny-0123a-a3-0.tiny-0123a.work.svc"


def test_npu_workers_never_share_a_node_and_others_may() -> None:
    anti = pod("npu")["affinity"]["podAntiAffinity"]
    (term,) = anti["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert "podAffinity" in pod("npu")["affinity"], "the job's own affinity stays"
    assert "affinity" not in pod("gpu")


def test_the_config_map_does_not_change_with_the_run_policy() -> None:
    job = admit(view(policy={"ttlSecondsAfterFinished": 1}), SETTINGS)
    assert config_map(job, SETTINGS) == config_map(admit(view(), SETTINGS), SETTINGS)

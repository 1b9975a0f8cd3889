"""The ground that the operator stands on: what a real Job controller does with an Indexed Job.

Numbers are those of the rules for failures and attempts that reconcile follows.
"""

from typing import Any

import pytest

import pod_states
from child_process import wait_for
from cluster_access import Cluster, Json
from simulated_kubelet import SimulatedKubelet

pytestmark = pytest.mark.controlplane


def gang(cluster: Cluster, namespace: str, *, workers: int = 2) -> Json:
    """A gang that fails as one, and succeeds with its rank 0."""
    container = {"name": "worker", "image": "none.invalid/worker:1", "command": ["sleep"]}
    rules: list[Any] = [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "worker", "operator": "In", "values": [64, 65]},
        },
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    spec = {
        "completionMode": "Indexed",
        "completions": workers,
        "parallelism": workers,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": rules},
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    body = {"metadata": {"name": "gang"}, "spec": spec}
    return cluster.create("jobs", body, namespace=namespace)


def conditions(cluster: Cluster, job: Json) -> dict[str, Json]:
    """True conditions of the job as it is now, by type."""
    found = cluster.get("jobs", job["metadata"]["name"], namespace=job["metadata"]["namespace"])
    return {
        condition["type"]: condition
        for condition in found["status"].get("conditions", [])
        if condition["status"] == "True"
    }


def wait_condition(cluster: Cluster, job: Json, kind: str) -> Json:
    return wait_for(f"Job condition {kind}", lambda: conditions(cluster, job).get(kind))


def test_c04_failure_target_comes_while_the_survivors_still_run(
    cluster: Cluster, namespace: str
) -> None:
    """No kubelet here: the survivor never ends, and Failed never comes."""
    job = gang(cluster, namespace)
    failing, survivor = pod_states.run_pods(cluster, job)
    pod_states.finish(cluster, failing, 64, message="bad input")
    target = wait_condition(cluster, job, "FailureTarget")
    assert target["reason"] == "PodFailurePolicy"
    assert "exit code 64" in target["message"]
    assert failing["metadata"]["name"] in target["message"]
    assert "Failed" not in conditions(cluster, job)
    name = survivor["metadata"]["name"]
    left = wait_for(
        "survivor deleted",
        lambda: [
            pod
            for pod in cluster.list("pods", namespace=namespace)
            if pod["metadata"]["name"] == name and "deletionTimestamp" in pod["metadata"]
        ],
    )
    assert left[0]["status"]["phase"] == "Running"


def test_c04_failed_comes_when_all_pods_have_ended(
    cluster: Cluster, namespace: str, kubelet: SimulatedKubelet
) -> None:
    job = gang(cluster, namespace)
    failing, _ = pod_states.run_pods(cluster, job)
    pod_states.finish(cluster, failing, 1)
    failed = wait_condition(cluster, job, "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    names = [pod["metadata"]["name"] for pod in pod_states.pods_of(cluster, job)]
    assert names == [failing["metadata"]["name"]], "the first failed pod stays readable"


def test_c04_success_of_rank_0_ends_the_job_and_a_later_failure_does_not_undo_it(
    cluster: Cluster, namespace: str
) -> None:
    job = gang(cluster, namespace)
    first, second = pod_states.run_pods(cluster, job)
    pod_states.finish(cluster, first, 0, message="{}")
    met = wait_condition(cluster, job, "SuccessCriteriaMet")
    assert met["reason"] == "SuccessPolicy"
    assert "Complete" not in conditions(cluster, job)
    pod_states.finish(cluster, second, 1)
    wait_condition(cluster, job, "Complete")
    assert "Failed" not in conditions(cluster, job)


def test_c03_eviction_is_told_apart_by_its_pod_and_ends_the_job(
    cluster: Cluster, namespace: str, kubelet: SimulatedKubelet
) -> None:
    job = gang(cluster, namespace)
    evicted, _ = pod_states.run_pods(cluster, job)
    pod_states.evict(cluster, evicted)
    target = wait_condition(cluster, job, "FailureTarget")
    assert target["reason"] == "PodFailurePolicy"
    assert "DisruptionTarget" in target["message"]


def test_c01_a_pod_of_a_lost_node_stays_running_and_the_job_says_nothing(
    cluster: Cluster, namespace: str, kubelet: SimulatedKubelet
) -> None:
    job = gang(cluster, namespace)
    lost, other = pod_states.run_pods(cluster, job)
    pod_states.lose_node(cluster, lost, grace_seconds=1)
    # the kubelet carries out this deletion: a sign that the first one was seen and left alone
    cluster.delete("pods", other["metadata"]["name"], namespace=namespace)
    wait_condition(cluster, job, "FailureTarget")
    found = cluster.get("pods", lost["metadata"]["name"], namespace=namespace)
    assert found["status"]["phase"] == "Running"
    assert "deletionTimestamp" in found["metadata"]
    assert "Failed" not in conditions(cluster, job)


def test_c02_pods_outlive_a_job_that_is_deleted_in_the_background(
    cluster: Cluster, namespace: str
) -> None:
    job = gang(cluster, namespace)
    running = {pod["metadata"]["uid"] for pod in pod_states.run_pods(cluster, job)}
    cluster.delete("jobs", "gang", namespace=namespace, options={"propagationPolicy": "Background"})
    wait_for("job gone", lambda: cluster.find("jobs", "gang", namespace=namespace) is None)
    left = {pod["metadata"]["uid"] for pod in cluster.list("pods", namespace=namespace)}
    assert left == running

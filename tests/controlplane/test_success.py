"""A job that succeeds: its children, its end at rank 0's word, and what the status says of it."""

import json

import pytest

import pod_states
from child_process import wait_for
from cluster_access import Json
from quantization_jobs import DIGEST, PUBLISHED, Quantization, publishes
from workplaces import Workplace

pytestmark = pytest.mark.controlplane


def succeed(workplace: Workplace) -> tuple[Quantization, list[dict[str, object]]]:
    job, pods = workplace.submit_running("ok")
    pod_states.complete(workplace.cluster, job.wait_job(1), message=PUBLISHED)
    job.wait_condition("Complete")
    return job, pods


def test_c04_a_job_is_complete_when_rank_0_is_and_its_peers_may_still_run(
    workplace: Workplace,
) -> None:
    job, pods = workplace.submit_running("peer-runs")
    pod_states.forget(workplace.cluster, pods[1])
    pod_states.finish(workplace.cluster, pods[0], 0, message=PUBLISHED)
    job.wait_condition("Complete")
    peer = workplace.cluster.get("pods", pods[1]["metadata"]["name"], namespace=job.namespace)
    assert peer["status"]["phase"] == "Running"
    pod_states.terminate(workplace.cluster, peer)


def ended(job: Json) -> bool:
    """Whether a Job says that it is complete or failed."""
    types = {condition["type"] for condition in job["status"].get("conditions", [])}
    return bool(types & {"Complete", "Failed"})


def test_c04_a_later_failure_of_a_peer_does_not_undo_success(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("late-failure")
    pod_states.forget(workplace.cluster, pods[1])
    pod_states.finish(workplace.cluster, pods[0], 0, message=PUBLISHED)
    job.wait_condition("Complete")
    pod_states.finish(workplace.cluster, pods[1], 1)
    # The Job itself may see both at once and say that it failed.
    wait_for("Job over", lambda: ended(job.wait_job(1)))
    status = job.status()
    assert status["attempt"] == 1
    assert job.condition("Failed")["status"] == "False"


def test_c08_the_digest_travels_in_rank_0s_last_words(workplace: Workplace) -> None:
    job, _ = succeed(workplace)
    output = job.status()["output"]
    assert output == {
        "path": f"out/{job.name}",
        "digest": DIGEST,
        "sizeBytes": 123456,
        "fileCount": 7,
        "warnings": 2,
    }
    assert job.condition("OutputVerified")["status"] == "True"


@pytest.mark.parametrize("words", ["", "no json", json.dumps({"manifestDigest": "sha256:short"})])
def test_c08_success_without_a_digest_is_complete_but_not_verified(
    workplace: Workplace, words: str
) -> None:
    job, _ = workplace.submit_running("wordless")
    pod_states.complete(workplace.cluster, job.wait_job(1), message=words)
    job.wait_condition("Complete")
    assert job.condition("OutputVerified")["status"] == "Unknown"
    assert "digest" not in job.status().get("output", {})


def test_a_success_tells_its_whole_story_in_the_status(workplace: Workplace) -> None:
    job, _ = succeed(workplace)
    status = job.status()
    assert status["phase"] == "Succeeded"
    assert status["observedGeneration"] == job.read()["metadata"]["generation"]
    assert status["restarts"] == {"application": 0, "disruption": 0}
    assert status["startTime"] <= status["completionTime"]
    assert status["jobRef"]["uid"] == job.wait_job(1)["metadata"]["uid"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Accepted": "True",
        "Suspended": "False",
        "WorkersReady": "False",
        "Progressing": "False",
        "OutputVerified": "True",
        "Complete": "True",
        "Failed": "False",
    }


def test_counts_of_workers_follow_the_pods(workplace: Workplace) -> None:
    job, _ = workplace.submit_running("counts", workers=3)
    seen = wait_for("all three ready", lambda: job.status()["workers"].get("ready") == 3)
    assert seen
    assert job.status()["workers"]["desired"] == 3


def test_children_have_one_owner_and_no_finalizer_and_the_job_neither(
    workplace: Workplace,
) -> None:
    job, _ = workplace.submit_running("family")
    kinds = {plural for plural, _ in job.children()}
    assert kinds == {"jobs", "services", "configmaps", "serviceaccounts", "networkpolicies"}
    for plural, name in job.children():
        meta = workplace.cluster.get(plural, name, namespace=job.namespace)["metadata"]
        assert meta.get("finalizers", []) == []
        assert len(meta["ownerReferences"]) == 1
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "quantfleet"
        assert meta["labels"]["quantfleet.io/job-uid"] == job.uid
    meta = job.read()["metadata"]
    assert "finalizers" not in meta
    assert "annotations" not in meta


def test_c15_a_job_of_the_simulated_kubelet_runs_by_itself(workplace: Workplace) -> None:
    job = workplace.submit("alone", behaviour=publishes)
    job.wait_condition("Complete")
    assert job.status()["attempt"] == 1


def test_kubectl_waits_for_it_lists_it_and_describes_it(workplace: Workplace) -> None:
    job = workplace.submit("seen", behaviour=publishes)
    where = ("-n", job.namespace)
    kubectl = workplace.cluster.kubectl
    kubectl("wait", "--for=condition=Complete", f"qj/{job.name}", "--timeout=60s", *where)
    heads, row = kubectl("get", "qj", job.name, *where).splitlines()
    assert {"NAME", "PHASE", "ATTEMPT", "AGE"} <= set(heads.split())
    assert "Succeeded" in row
    told = kubectl("describe", "qj", job.name, *where)
    assert "Type:                  Complete" in told
    reasons = [event["reason"] for event in job.events()]
    assert len(reasons) >= 2
    assert all(reason in told for reason in reasons)

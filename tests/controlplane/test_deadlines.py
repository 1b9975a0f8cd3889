"""Deadlines, suspension and time to live (T03, T12, C9)."""

import pytest

import pod_states
from child_process import wait_for
from quantization_jobs import PUBLISHED, Quantization, add_claims
from workplaces import Workplace

pytestmark = pytest.mark.controlplane


def jobs_gone(job: Quantization) -> None:
    wait_for("Jobs gone", lambda: not job.jobs())


def test_t03_an_image_that_cannot_be_pulled_is_said_and_fails_at_the_deadline(
    workplace: Workplace,
) -> None:
    job = workplace.submit("pull", policy={"preRunningDeadlineSeconds": 8})
    for pod in pod_states.bound_pods(workplace.cluster, job.wait_job(1)):
        pod_states.waiting(
            workplace.cluster, pod, reason="ImagePullBackOff", message="manifest unknown"
        )
    held = job.wait_condition("WorkersReady", "False", reason="ImagePullFailed")
    assert "manifest unknown" in held["message"]
    failed = job.wait_condition("Failed")
    assert "ImagePullBackOff" in failed["message"]
    jobs_gone(job)


def test_t03_workers_that_fit_on_no_node_are_said_and_fail_at_the_deadline(
    workplace: Workplace,
) -> None:
    options = {"nodeSelector": {"quantfleet.test/zone": "nowhere"}}
    job = workplace.submit("nowhere", options=options, policy={"preRunningDeadlineSeconds": 8})
    held = job.wait_condition("WorkersReady", "False", reason="Unschedulable")
    assert "node" in held["message"]
    failed = job.wait_condition("Failed")
    assert "Unschedulable" in failed["message"]
    jobs_gone(job)


def test_t03_a_missing_claim_is_said_and_waited_for(workplace: Workplace) -> None:
    """A claim may still come: no failure before the deadline (C15)."""
    job = workplace.submit("claim", output_claim="absent")
    held = job.wait_condition("WorkersReady", "False", reason="ClaimNotFound")
    assert "absent" in held["message"]
    assert job.condition("Failed")["status"] != "True"


def test_c15_a_claim_for_one_node_under_workers_on_several_is_named(workplace: Workplace) -> None:
    """The kubelets would wait for the volume without end; nobody else says why."""
    add_claims(workplace.cluster, workplace.namespace, names=("solo",), modes=("ReadWriteOnce",))
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"gang": "x"}},
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    options = {"affinity": affinity, "labels": {"gang": "x"}}
    job = workplace.submit("solo", output_claim="solo", options=options)
    held = job.wait_condition("WorkersReady", "False", reason="ClaimNotShared")
    assert "solo" in held["message"]
    assert "ReadWriteOnce" in held["message"]


def test_t03_a_quota_that_refuses_pods_is_said(own_workplace: Workplace) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    own_workplace.cluster.create("resourcequotas", quota, namespace=own_workplace.namespace)

    def enforced() -> bool:
        found = own_workplace.cluster.get(
            "resourcequotas", "none", namespace=own_workplace.namespace
        )
        return "hard" in found.get("status", {})

    wait_for("quota enforced", enforced)
    job = own_workplace.submit("quota")
    held = job.wait_condition("WorkersReady", "False", reason="QuotaExceeded", seconds=90)
    assert "quota" in held["message"]


def test_an_active_deadline_spans_attempts(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("spans", policy={"activeDeadlineSeconds": 12})
    pod_states.finish(workplace.cluster, pods[0], 1)
    job.wait_running(2)
    failed = job.wait_condition("Failed", reason="DeadlineExceeded")
    assert "12" in failed["message"]
    status = job.status()
    assert 12 <= status["activeSeconds"] < 30
    assert status["attempt"] == 2
    jobs_gone(job)


def test_c09_suspension_ends_the_pods_and_is_no_failure(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("pause", policy={"backoffLimit": 0})
    job.change(suspend=True)
    job.wait_condition("Suspended")
    old = {pod["metadata"]["uid"] for pod in pods}
    wait_for("old pods gone", lambda: not job.pods())
    status = job.status()
    assert (status["attempt"], status["phase"]) == (1, "Suspended")
    assert "activeSince" not in status
    job.change(suspend=False)
    job.wait_condition("Suspended", "False")
    started = wait_for("an attempt that can run", lambda: job.jobs() and job.status()["jobRef"])
    attempt = int(started["name"].rsplit("-a", 1)[1])
    assert not old & {pod["metadata"]["uid"] for pod in job.wait_running(attempt)}
    assert job.status()["restarts"] == {"application": 0, "disruption": 0}
    pod_states.complete(workplace.cluster, job.wait_job(attempt), message=PUBLISHED)
    job.wait_condition("Complete")


def test_t12_a_suspended_job_outlives_its_deadlines(workplace: Workplace) -> None:
    policy = {"suspend": True, "activeDeadlineSeconds": 3, "preRunningDeadlineSeconds": 3}
    job = workplace.submit("asleep", policy=policy)
    job.wait_condition("Suspended")
    since = job.condition("Suspended")["lastTransitionTime"]
    wait_for("longer than both deadlines", lambda: pod_states.ago(6) > since, every=0.5)
    assert job.condition("Failed")["status"] != "True"
    assert job.status().get("activeSeconds", 0) == 0
    job.change(suspend=False)
    pods = pod_states.run_pods(workplace.cluster, job.wait_job(1))
    pod_states.finish(workplace.cluster, pods[0], 0, message=PUBLISHED)
    job.wait_condition("Complete")


def test_c09_time_to_live_deletes_the_children_and_never_the_job(workplace: Workplace) -> None:
    job, _ = workplace.submit_running("ttl", policy={"ttlSecondsAfterFinished": 2})
    pod_states.complete(workplace.cluster, job.wait_job(1), message=PUBLISHED)
    job.wait_condition("Complete")
    wait_for("children gone", lambda: not job.children())
    assert job.status()["phase"] == "Succeeded"
    job.change(ttlSecondsAfterFinished=0)
    assert job.condition("Complete")["status"] == "True"
    assert not job.children()

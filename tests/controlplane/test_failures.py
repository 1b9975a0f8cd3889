"""What an attempt's end counts as, who is to blame, and when the next one starts (T02, T18, C3)."""

from typing import Any

import pytest

import pod_states
from child_process import wait_for
from cluster_access import Json
from quantization_jobs import PUBLISHED, Quantization
from workplaces import Workplace

pytestmark = pytest.mark.controlplane


def counted(job: Quantization) -> tuple[int, int]:
    """Restarts after failures of the program, and after disruptions."""
    restarts = job.status()["restarts"]
    return restarts["application"], restarts["disruption"]


def test_t02_an_eviction_does_not_count_against_the_backoff_limit(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("evicted", policy={"backoffLimit": 0})
    pod_states.evict(workplace.cluster, pods[1])
    job.wait_job(2)
    assert counted(job) == (0, 1)
    assert job.status()["lastFailure"]["cause"] == "Disruption"
    job.wait_running(2)
    pod_states.complete(workplace.cluster, job.wait_job(2), message=PUBLISHED)
    job.wait_condition("Complete")


def test_t02_failures_of_the_program_count_and_the_last_one_fails_the_job(
    workplace: Workplace,
) -> None:
    job, pods = workplace.submit_running("failing", policy={"backoffLimit": 1})
    pod_states.finish(workplace.cluster, pods[1], 1)
    job.wait_running(2)
    assert counted(job) == (1, 0)
    pod_states.finish(
        workplace.cluster, pod_states.pods_of(workplace.cluster, job.wait_job(2))[0], 1
    )
    failed = job.wait_condition("Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    status = job.status()
    assert (status["attempt"], status["phase"]) == (2, "Failed")
    assert counted(job) == (1, 0)


@pytest.mark.parametrize(("code", "reason"), [(64, "InvalidInput"), (65, "GateNotMet")])
def test_t02_some_exit_codes_are_never_tried_again(
    workplace: Workplace, code: int, reason: str
) -> None:
    job, pods = workplace.submit_running("final")
    pod_states.finish(workplace.cluster, pods[0], code, message="perplexity ratio 1.31 > 1.03")
    failed = job.wait_condition("Failed")
    failure = job.status()["lastFailure"]
    assert (failure["exitCode"], failure["reason"]) == (code, reason)
    assert "perplexity ratio 1.31 > 1.03" in failed["message"]
    assert job.job(2) is None
    assert job.condition("Complete")["status"] == "False"


def test_c03_an_evicted_pod_whose_peer_leaves_first_is_a_disruption(workplace: Workplace) -> None:
    """The Job itself then says BackoffLimitExceeded and names nobody."""
    job, pods = workplace.submit_running("peer-first", policy={"backoffLimit": 0})
    reason = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    condition = {**reason, "lastTransitionTime": pod_states.now()}
    workplace.cluster.patch(
        "pods",
        pods[0]["metadata"]["name"],
        {"status": {"conditions": [condition]}},
        namespace=job.namespace,
        sub="status",
        content="application/strategic-merge-patch+json",
    )
    pod_states.finish(workplace.cluster, pods[1], 75)
    job.wait_job(2)
    assert counted(job) == (0, 1)
    failure = job.status()["lastFailure"]
    assert (failure["index"], failure["reason"]) == (0, "PreemptionByScheduler")


def test_c03_a_pod_deleted_by_hand_is_a_disruption_though_it_vanishes(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("by-hand", policy={"backoffLimit": 0})
    workplace.cluster.delete("pods", pods[1]["metadata"]["name"], namespace=job.namespace)
    job.wait_job(2)
    assert counted(job) == (0, 1)
    failure = job.status()["lastFailure"]
    assert (failure["cause"], failure["index"]) == ("Disruption", 1)


def test_c03_out_of_memory_is_a_failure_of_the_program_with_its_name(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("oom", policy={"backoffLimit": 0})
    pod_states.finish(workplace.cluster, pods[1], 137, reason="OOMKilled")
    failed = job.wait_condition("Failed")
    assert "OOMKilled" in failed["message"]
    failure = job.status()["lastFailure"]
    assert (failure["cause"], failure["reason"]) == ("Application", "OOMKilled")


@pytest.mark.parametrize("code", [75, 137, 143])
def test_c03_collateral_exits_alone_count_as_unknown(workplace: Workplace, code: int) -> None:
    job, pods = workplace.submit_running("collateral", policy={"backoffLimit": 0})
    pod_states.finish(workplace.cluster, pods[0], code)
    job.wait_condition("Failed", reason="BackoffLimitExceeded")
    assert job.status()["lastFailure"]["cause"] == "Unknown"


def test_c03_a_deleted_job_means_its_attempt_is_lost(workplace: Workplace) -> None:
    """C6: a Job whose UID was recorded is never made again under the same name."""
    job, _ = workplace.submit_running("lost-job", policy={"backoffLimit": 0})
    name = job.wait_job(1)["metadata"]["name"]
    options = {"propagationPolicy": "Background"}
    workplace.cluster.delete("jobs", name, namespace=job.namespace, options=options)
    job.wait_job(2)
    assert job.job(1) is None
    assert counted(job) == (0, 1)


def blamed(failure: Json) -> tuple[Any, ...]:
    return failure["index"], failure["exitCode"], failure["podName"], failure["nodeName"]


def test_t18_the_pod_at_the_root_is_named_not_those_that_it_took_along(
    workplace: Workplace,
) -> None:
    job, pods = workplace.submit_running("root", workers=3, policy={"backoffLimit": 0})
    # the peers' exits are older and newer than the one that caused them
    pod_states.finish(workplace.cluster, pods[0], 75, finished_at=pod_states.ago(3))
    pod_states.finish(
        workplace.cluster, pods[2], 70, message="IndexError: layer 7", finished_at=pod_states.ago(1)
    )
    failed = job.wait_condition("Failed")
    root = pods[2]
    named = (2, 70, root["metadata"]["name"], root["spec"]["nodeName"])
    assert blamed(job.status()["lastFailure"]) == named
    for part in ("2", "70", root["metadata"]["name"], root["spec"]["nodeName"], "layer 7"):
        assert part in failed["message"]


def test_t18_among_equal_failures_the_earliest_is_named(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("earliest", workers=3, policy={"backoffLimit": 0})
    pod_states.finish(workplace.cluster, pods[1], 3, finished_at=pod_states.ago(5))
    pod_states.finish(workplace.cluster, pods[0], 3, finished_at=pod_states.ago(1))
    job.wait_condition("Failed")
    assert job.status()["lastFailure"]["index"] == 1


def test_c01_a_new_attempt_waits_until_every_old_pod_has_ended(workplace: Workplace) -> None:
    """The Job goes in the background at once; a survivor that takes its time holds a2 back."""
    job, pods = workplace.submit_running("slow")
    survivor = pods[0]["metadata"]["name"]
    finalizers = {"metadata": {"finalizers": ["quantfleet.test/slow"]}}
    workplace.cluster.patch("pods", survivor, finalizers, namespace=job.namespace)
    pod_states.forget(workplace.cluster, pods[0])
    pod_states.finish(workplace.cluster, pods[1], 1)
    job.wait_gone(1)
    wait_for("attempt 2 decided", lambda: job.status()["attempt"] == 2)
    assert job.job(2) is None
    slow = workplace.cluster.get("pods", survivor, namespace=job.namespace)
    assert "deletionTimestamp" in slow["metadata"]
    pod_states.finish(workplace.cluster, slow, 143)
    job.wait_job(2)
    release = {"metadata": {"finalizers": None}}
    workplace.cluster.patch("pods", survivor, release, namespace=job.namespace)


def test_c01_a_pod_of_a_lost_node_does_not_hold_the_job_for_ever(workplace: Workplace) -> None:
    job, pods = workplace.submit_running("lost-node", policy={"backoffLimit": 0})
    pod_states.lose_node(workplace.cluster, pods[1], grace_seconds=1)
    job.wait_job(2, seconds=120)
    lost = workplace.cluster.get("pods", pods[1]["metadata"]["name"], namespace=job.namespace)
    assert lost["status"]["phase"] == "Running", "nobody ever reported its end"
    assert counted(job) == (0, 1)
    job.wait_running(2)
    pod_states.terminate(workplace.cluster, lost)

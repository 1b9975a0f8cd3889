"""How and how often the operator writes (T09, T12, T16, C14), and what it counts while it does."""

import time
from functools import partial
from typing import Any

import pytest

import pod_states
from child_process import wait_for
from cluster_access import APPLY, path_of
from control_plane import OPERATOR_USER, ControlPlane
from fault_proxy import FaultProxy
from quantization_jobs import PUBLISHED, Quantization, publishes
from workplaces import Workplace

pytestmark = pytest.mark.controlplane

IDLE_SECONDS = 6.0


def owners_of_status(job: Quantization) -> dict[str, set[str]]:
    """Top-level status fields by the field manager that owns them."""
    return {
        entry["manager"]: {
            field.removeprefix("f:") for field in entry["fieldsV1"].get("f:status", {})
        }
        for entry in job.read()["metadata"]["managedFields"]
        if entry.get("subresource") == "status"
    }


def test_c14_the_status_has_one_writer_and_nothing_of_it_was_pruned(
    workplace: Workplace,
) -> None:
    job = workplace.submit("owner", behaviour=publishes)
    job.wait_condition("Complete")
    owners = owners_of_status(job)
    assert set(owners) == {"quantfleet-operator"}
    assert owners["quantfleet-operator"] == set(job.status())


def test_c14_progress_of_another_writer_is_left_alone(workplace: Workplace) -> None:
    job, _ = workplace.submit_running("progress")
    progress = {
        "attempt": 1,
        "stage": "Calibrating",
        "percent": 40,
        "lastUpdateTime": pod_states.now(),
    }
    report(job, progress)
    job.change(activeDeadlineSeconds=5000)  # makes the operator write
    generation = job.read()["metadata"]["generation"]
    wait_for("generation seen", lambda: job.status()["observedGeneration"] == generation)
    assert job.status()["progress"]["percent"] == 40
    pods = pod_states.pods_of(workplace.cluster, job.wait_job(1))
    pod_states.finish(workplace.cluster, pods[0], 0, message=PUBLISHED)
    job.wait_condition("Complete")
    assert job.status()["progress"]["percent"] == 40


def report(job: Quantization, progress: dict[str, Any]) -> None:
    """What the status server writes."""
    path = path_of("quantizationjobs", job.name, namespace=job.namespace, sub="status")
    body = {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": job.name},
        "status": {"progress": progress},
    }
    query = {"fieldManager": "quantfleet-server", "force": "true"}
    job.cluster.access.call("PATCH", path, body, query=query, content=APPLY)


def writes_in(proxy: FaultProxy, seconds: float) -> list[str]:
    """What was written through the proxy while nothing happened, events apart."""
    before = len(proxy.writes)
    time.sleep(seconds)  # the absence of an event has no condition to wait for
    return [f"{call.method} {call.path}" for call in proxy.writes[before:]]


def test_t16_while_nothing_happens_nothing_is_written(
    behind_proxy: Workplace, proxy: FaultProxy
) -> None:
    """Jobs of every kind: running, suspended, waiting, done, failed."""
    done = behind_proxy.submit("done", behaviour=publishes)
    running, _ = behind_proxy.submit_running("running")
    asleep = behind_proxy.submit("asleep", policy={"suspend": True})
    failed, pods = behind_proxy.submit_running("failed", policy={"backoffLimit": 0})
    pod_states.finish(behind_proxy.cluster, pods[0], 1)
    done.wait_condition("Complete")
    asleep.wait_condition("Suspended")
    failed.wait_condition("Failed")
    wait_for("the survivor of the failed job gone", lambda: len(failed.pods()) <= 1)
    wait_for("quiet", lambda: writes_in(proxy, 2.0) == [], seconds=60)
    assert writes_in(proxy, IDLE_SECONDS) == []
    assert running.condition("WorkersReady")["status"] == "True"


def test_t12_what_others_change_in_a_job_is_not_fought_over(
    behind_proxy: Workplace, proxy: FaultProxy
) -> None:
    """A queue suspends a Job and labels it: reported, its clocks stand still, no write follows."""
    job, _ = behind_proxy.submit_running("queued", policy={"activeDeadlineSeconds": 4})
    name = job.wait_job(1)["metadata"]["name"]
    body = {"metadata": {"labels": {"queue.test/admitted": "no"}}, "spec": {"suspend": True}}
    behind_proxy.cluster.patch("jobs", name, body, namespace=job.namespace)
    job.wait_condition("Suspended", reason="SuspendedByOthers")
    wait_for("pods gone", lambda: not job.pods())
    wait_for("quiet", lambda: writes_in(proxy, 1.0) == [], seconds=60)
    assert writes_in(proxy, IDLE_SECONDS) == []
    found = job.wait_job(1)
    assert found["spec"]["suspend"] is True
    assert found["metadata"]["labels"]["queue.test/admitted"] == "no"
    assert job.condition("Failed")["status"] == "False"
    behind_proxy.cluster.patch("jobs", name, {"spec": {"suspend": False}}, namespace=job.namespace)
    job.wait_condition("Suspended", "False")
    job.wait_running(1)
    assert job.status()["restarts"] == {"application": 0, "disruption": 0}


def test_t12_where_a_queue_sends_the_pods_is_kept_through_suspension(workplace: Workplace) -> None:
    """A queue sets node selectors in a suspended Job; both sorts of suspension leave them."""
    job, _ = workplace.submit_running("flavour")
    name = job.wait_job(1)["metadata"]["name"]
    chosen = {"kubernetes.io/hostname": "node-1"}
    change = partial(workplace.cluster.patch, "jobs", name, namespace=job.namespace)
    change({"spec": {"suspend": True}})
    job.wait_condition("Suspended")
    wait_for("pods gone", lambda: not job.pods())
    change({"status": {"startTime": None}}, sub="status")  # as a queue does: else immutable
    change({"spec": {"template": {"spec": {"nodeSelector": chosen}}}})
    change({"spec": {"suspend": False}})
    job.wait_condition("Suspended", "False")
    pods = job.wait_running(1)
    assert {pod["spec"]["nodeName"] for pod in pods} == set(chosen.values())
    job.change(suspend=True)
    wait_for("pods gone", lambda: not job.pods())
    job.change(suspend=False)
    again = job.wait_running(1)
    assert {pod["spec"]["nodeName"] for pod in again} == set(chosen.values())
    assert job.status()["restarts"] == {"application": 0, "disruption": 0}


def test_metrics_count_jobs_restarts_and_reconciles(own_workplace: Workplace) -> None:
    job, pods = own_workplace.submit_running("counted")
    pod_states.evict(own_workplace.cluster, pods[0])
    job.wait_running(2)
    operator = own_workplace.operator
    counted = 'quantfleet_restarts_total{cause="Disruption"} 1.0'
    wait_for("a restart counted", lambda: counted in operator.metrics().splitlines())
    names = {line.split("{")[0].split(" ")[0] for line in operator.metrics().splitlines()}
    wanted = ("jobs", "reconcile", "queue", "restarts")
    missing = [
        word
        for word in wanted
        if not any(name.startswith("quantfleet_") and word in name for name in names)
    ]
    assert missing == []


def test_c15_the_operator_asks_for_nothing_outside_its_namespaces(
    plane: ControlPlane, own_workplace: Workplace
) -> None:
    """Its requests as the audit log has them: no other namespace, no secrets, nothing forbidden."""
    job = own_workplace.submit("audited", behaviour=publishes)
    job.wait_condition("Complete")
    started = own_workplace.cluster.get("namespaces", own_workplace.namespace)
    since = started["metadata"]["creationTimestamp"]
    made = [entry for entry in plane.audited(OPERATOR_USER) if entry["stageTimestamp"] >= since]
    places = {entry.get("objectRef", {}).get("namespace") for entry in made}
    assert own_workplace.namespace in places
    resources = {entry.get("objectRef", {}).get("resource") for entry in made}
    assert "secrets" not in resources
    patched = [entry for entry in made if entry["verb"] in ("update", "patch")]
    whole = [
        entry
        for entry in patched
        if entry["objectRef"]["resource"] == "quantizationjobs"
        and entry["objectRef"].get("subresource") != "status"
    ]
    assert whole == [], (
        "only the status of our objects is ever written: no annotation, no finalizer"
    )

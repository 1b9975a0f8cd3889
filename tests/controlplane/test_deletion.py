"""Deletion: of a job, of a namespace, with the operator running or not (T07, C7), and names."""

import pytest

import pod_states
from child_process import wait_for
from cluster_access import Refused
from quantfleet_api.names import job_name
from quantization_jobs import Quantization, manifest, publishes, submit
from workplaces import Workplace

pytestmark = pytest.mark.controlplane


def wait_nothing_left(job: Quantization) -> None:
    """No object and no child of it."""

    def gone() -> bool:
        found = job.cluster.find("quantizationjobs", job.name, namespace=job.namespace)
        return found is None and not job.children() and not job.pods()

    wait_for(f"nothing left of {job.name}", gone)


def test_deleting_a_job_deletes_all_that_belongs_to_it(workplace: Workplace) -> None:
    job, _ = workplace.submit_running("deleted")
    job.delete()
    wait_nothing_left(job)


def test_t07_deleting_a_job_needs_no_operator(own_workplace: Workplace) -> None:
    job, _ = own_workplace.submit_running("orphan")
    own_workplace.operator.kill()
    job.delete()
    wait_nothing_left(job)


def test_c07_a_namespace_goes_with_its_jobs_and_nothing_is_counted(
    own_workplace: Workplace,
) -> None:
    """Pods go first: to the operator that looks like a disruption."""
    job, _ = own_workplace.submit_running("namespace")
    seen: list[dict[str, object]] = []
    own_workplace.cluster.delete("namespaces", own_workplace.namespace)

    def gone() -> bool:
        found = own_workplace.cluster.find(
            "quantizationjobs", job.name, namespace=own_workplace.namespace
        )
        if found is not None and found["status"] not in seen:
            seen.append(found["status"])
        return own_workplace.cluster.find("namespaces", own_workplace.namespace) is None

    wait_for("namespace gone", gone, seconds=90, every=0.02)
    assert {status["attempt"] for status in seen} == {1}  # type: ignore[attr-defined]
    assert all(status["restarts"] == {"application": 0, "disruption": 0} for status in seen)
    assert own_workplace.operator.alive()
    assert own_workplace.operator.answers("healthz")


def test_a_job_made_again_under_the_same_name_has_children_of_its_own(
    workplace: Workplace,
) -> None:
    body = manifest("again")
    first = submit(workplace.cluster, workplace.namespace, body)
    first.wait_running(1)
    old = {name for _, name in first.children()}
    first.delete()
    wait_for(
        "first gone",
        lambda: (
            workplace.cluster.find("quantizationjobs", "again", namespace=first.namespace) is None
        ),
    )
    second = submit(workplace.cluster, workplace.namespace, body)
    assert second.uid != first.uid
    second.wait_running(1)
    assert not old & {name for _, name in second.children()}
    assert second.status()["attempt"] == 1


@pytest.mark.parametrize("length", [1, 46])
def test_t10_names_of_every_length_that_is_allowed_work(workplace: Workplace, length: int) -> None:
    name = ("n" + "0123456789" * 5)[:length]
    workplace.behaviours[name] = publishes
    job = submit(workplace.cluster, workplace.namespace, manifest(name, workers=1))
    job.wait_condition("Complete")
    hosts = [pod["spec"]["hostname"] for pod in job.pods()]
    assert all(len(host) <= 63 for host in hosts)


@pytest.mark.parametrize(
    "name", ["1st", "with.dot", "n" * 47, "Upper", "ends-"], ids=lambda name: name[:10]
)
def test_t10_other_names_are_refused_when_they_are_applied(workplace: Workplace, name: str) -> None:
    with pytest.raises(Refused) as refused:
        submit(workplace.cluster, workplace.namespace, manifest(name))
    assert refused.value.status == 422


def test_c06_a_foreign_job_of_our_name_is_named_and_waited_for(own_workplace: Workplace) -> None:
    own_workplace.operator.kill()
    body = manifest("conflict")
    job = submit(own_workplace.cluster, own_workplace.namespace, body)
    name = job_name(job.name, job.uid, 1)
    container = {"name": "worker", "image": "none.invalid/other:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    foreign = {"metadata": {"name": name}, "spec": {"template": template}}
    own_workplace.cluster.create("jobs", foreign, namespace=job.namespace)
    own_workplace.operator.start()
    held = job.wait_condition("WorkersReady", "False", reason="NameConflict")
    assert name in held["message"]
    own_workplace.cluster.delete(
        "jobs", name, namespace=job.namespace, options={"propagationPolicy": "Background"}
    )
    job.wait_running(1)
    assert pod_states.owner_of(job.wait_job(1)) == job.uid
    assert job.status()["restarts"] == {"application": 0, "disruption": 0}

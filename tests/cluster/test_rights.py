"""What a worker pod can do besides its work: nothing."""

import itertools
from collections.abc import Iterator

import pytest

from child_process import wait_for
from cluster_access import GROUPS, Access, Json, Refused, path_of
from quantization_jobs import Quantization
from real_jobs import Ground, example

pytestmark = [pytest.mark.cluster, pytest.mark.demo]
LONG = {"spec.calibration.sampleCount": 512, "spec.calibration.sequenceLength": 256}
"""All texts there are: more work than these tests last."""


@pytest.fixture(scope="module")
def running(shared_ground: Ground) -> Iterator[Quantization]:
    """A job whose pods run."""
    job = shared_ground.submit(example("rights", LONG))
    job.wait_condition("WorkersReady", seconds=180)
    yield job
    job.delete()
    wait_for("its pods are gone", lambda: not job.pods(), seconds=120)


def pods_by_index(job: Quantization) -> list[Json]:
    key = "batch.kubernetes.io/job-completion-index"
    return sorted(job.pods(), key=lambda pod: int(pod["metadata"]["labels"][key]))


def test_the_account_of_a_worker_may_do_nothing(
    shared_ground: Ground, running: Quantization
) -> None:
    """Every verb on every kind that a cluster has, asked for with a token of the account."""
    cluster, namespace = shared_ground.cluster, shared_ground.namespace
    account = pods_by_index(running)[0]["spec"]["serviceAccountName"]
    token = cluster.kubectl("create", "token", account, "-n", namespace).strip()
    worker = Access(server=cluster.access.server, token=token, authority=cluster.access.authority)
    body = {"metadata": {"name": "made-by-a-worker"}}
    allowed = []
    for plural, verb in itertools.product(GROUPS, ("GET", "POST", "PATCH", "PUT", "DELETE")):
        name = None if verb == "POST" else "default"
        for place in (path_of(plural, name, namespace=namespace), path_of(plural)):
            try:
                worker.call(verb, place, body if verb in ("POST", "PUT", "PATCH") else None)
                allowed.append(f"{verb} {place}")
            except Refused as refused:
                if refused.status not in (403, 405):
                    allowed.append(f"{verb} {place}: {refused.status}")
    assert allowed == []
    rules = worker.call(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        {"spec": {"namespace": namespace}},
    )["status"]["resourceRules"]
    mine = {
        (group, kind) for rule in rules for group in rule["apiGroups"] for kind in rule["resources"]
    }
    # what every account has: to ask what it may do
    assert {group for group, _ in mine} <= {"authorization.k8s.io", "authentication.k8s.io"}


def test_a_pod_has_no_token_of_the_api_server(running: Quantization) -> None:
    """Neither the usual mount, nor another one of that audience."""
    for pod in pods_by_index(running):
        assert pod["spec"]["automountServiceAccountToken"] is False
        for volume in pod["spec"]["volumes"]:
            for source in volume.get("projected", {}).get("sources", []):
                audience = source["serviceAccountToken"]["audience"]
                assert audience.startswith("quantfleet/")

"""Real pods on two nodes quantize a real model: the same bytes as a run without a cluster."""

import hashlib
import time

import pytest
from transformers import AutoModelForCausalLM

from child_process import wait_for
from quantfleet_worker import published
from real_jobs import Ground, committed, example

pytestmark = [pytest.mark.cluster, pytest.mark.demo]


@pytest.mark.parametrize("processes", [1, 2], ids=["one-process-a-pod", "two-processes-a-pod"])
def test_two_pods_publish_the_bytes_of_a_run_without_a_cluster(
    shared_ground: Ground, expected: dict[str, str], processes: int, figures: dict[str, object]
) -> None:
    begin = time.monotonic()
    edits = {"spec.workers.processesPerWorker": processes}
    job = shared_ground.submit(example(f"bytes-{processes}", edits))
    output = shared_ground.output(job)
    job.wait_condition("WorkersReady", seconds=180)
    ready = time.monotonic() - begin
    nodes = {pod["spec"]["nodeName"] for pod in job.pods()}
    wait_for(
        "a layer committed", lambda: output.exists() or committed(output), seconds=180, every=0.02
    )
    first = time.monotonic() - begin
    status = shared_ground.complete(job)
    figures |= {
        "workers_ready_seconds": round(ready, 1),
        "first_layer_seconds": round(first, 1),
        "complete_seconds": round(time.monotonic() - begin, 1),
    }

    assert len(nodes) == 2
    assert shared_ground.digests(job) == expected
    raw = (output / published.MANIFEST_NAME).read_bytes()
    assert status["output"]["digest"] == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    assert status["attempt"] == 1
    assert job.condition("OutputVerified")["status"] == "True"
    assert not output.with_name(output.name + ".work").exists()
    model = AutoModelForCausalLM.from_pretrained(output / "compressed-tensors")
    assert model.config.num_hidden_layers == 2


def test_two_jobs_at_once_do_not_disturb_each_other(
    shared_ground: Ground, expected: dict[str, str]
) -> None:
    """In one namespace, on the same nodes and ports, from the same claims."""
    jobs = [shared_ground.submit(example(f"both-{name}")) for name in ("a", "b")]
    for job in jobs:
        shared_ground.complete(job)
        assert shared_ground.digests(job) == expected
    accounts = {pod["spec"]["serviceAccountName"] for job in jobs for pod in job.pods()}
    assert len(accounts) == 2

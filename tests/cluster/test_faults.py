"""Faults in the middle of a job on real nodes: the same bytes come out, little is done twice."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import node_faults
from child_process import wait_for
from cluster_access import Json
from control_plane import ControlPlane
from quantization_jobs import Quantization
from real_jobs import (
    EIGHT_LAYERS,
    PUBLISHED,
    WORKER_USER,
    Ground,
    committed,
    example,
    ground,
    layers_of,
)
from two_nodes.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.demo, pytest.mark.soak]
STRIKES_AFTER = 2
"""Committed layers before the fault: the embedding and a decoder layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A job in the middle of its work, and all that a fault may want to touch."""

    site: Site
    ground: Ground
    job: Quantization
    pods: list[Json]  # by completion index
    system: str  # namespace of the operator

    @property
    def output(self) -> Path:
        return self.ground.output(self.job)


Strike = Callable[[Scene], None]


def delete_worker(scene: Scene) -> None:
    scene.ground.cluster.delete(
        "pods", scene.pods[1]["metadata"]["name"], namespace=scene.ground.namespace
    )


def delete_first_worker(scene: Scene) -> None:
    scene.ground.cluster.delete(
        "pods", scene.pods[0]["metadata"]["name"], namespace=scene.ground.namespace
    )


def kill_worker(scene: Scene) -> None:
    node_faults.kill_worker(scene.pods[1])


def kill_rank(scene: Scene) -> None:
    node_faults.kill_rank(scene.pods[1])


def delete_operator(scene: Scene) -> None:
    cluster = scene.ground.cluster
    for pod in cluster.list("pods", namespace=scene.system):
        cluster.delete("pods", pod["metadata"]["name"], namespace=scene.system)


def stop_api_server(scene: Scene) -> None:
    node_faults.stop_api_server(scene.site, seconds=60)


def restart_containerd(scene: Scene) -> None:
    node_faults.restart_containerd(scene.site, node_faults.node_of(scene.site, scene.pods[1]))


def cut_network(scene: Scene) -> None:
    node = node_faults.node_of(scene.site, scene.pods[1])
    node_faults.cut_network(scene.ground.cluster, node, seconds=30)


def drain(scene: Scene) -> None:
    node = node_faults.node_of(scene.site, scene.pods[1])
    with node_faults.drained(scene.ground.cluster, scene.site, node):
        scene.job.wait_job(2, seconds=120)


def stop_kubelet(scene: Scene) -> None:
    """Longer than the tolerations of a lost node: its pod is given up."""
    node = node_faults.node_of(scene.site, scene.pods[1])
    with node_faults.kubelet_stopped(scene.site, node):
        scene.job.wait_job(2, seconds=300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What strikes, how many attempts the job may then need, and what it is counted as."""

    strike: Strike
    attempts: tuple[int, ...]
    counted: str | None = None


FAULTS = {
    "worker-pod-deleted": Fault(strike=delete_worker, attempts=(2,), counted="disruption"),
    "first-worker-pod-deleted": Fault(
        strike=delete_first_worker, attempts=(2,), counted="disruption"
    ),
    "worker-process-killed": Fault(strike=kill_worker, attempts=(2,), counted="application"),
    "rank-killed": Fault(strike=kill_rank, attempts=(2,), counted="application"),
    "operator-pod-deleted": Fault(strike=delete_operator, attempts=(1,)),
    "containerd-restarted": Fault(strike=restart_containerd, attempts=(1,)),
    "api-server-stopped-60-s": Fault(strike=stop_api_server, attempts=(1,)),
    "network-of-a-node-cut-30-s": Fault(strike=cut_network, attempts=(1, 2)),
    "node-drained": Fault(strike=drain, attempts=(2,), counted="disruption"),
    "kubelet-stopped": Fault(strike=stop_kubelet, attempts=(2,), counted="disruption"),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_no_byte(
    site: Site,
    installed: str,
    shared_ground: Ground,
    expected_of_eight: dict[str, str],
    figures: dict[str, object],
    name: str,
) -> None:
    fault = FAULTS[name]
    job = shared_ground.submit(example(name, EIGHT_LAYERS))
    pods = in_the_middle(shared_ground, job)
    scene = Scene(site=site, ground=shared_ground, job=job, pods=pods, system=installed)
    before, struck = committed(scene.output), time.monotonic()
    fault.strike(scene)
    back = seconds_until_back(shared_ground, job, struck)
    status = shared_ground.complete(job, seconds=420)
    again = [file for file, about in before.items() if written_again(scene.output, file, about)]
    figures |= {
        "fault": name,
        "attempts": status["attempt"],
        "layers_committed_before": layers_of(before),
        "committed_layers_written_again": layers_of(dict.fromkeys(again)),
        "seconds_to_be_back": back,
        "seconds_to_complete": round(time.monotonic() - struck, 1),
    }
    assert shared_ground.digests(job) == expected_of_eight
    assert status["attempt"] in fault.attempts, status.get("lastFailure")
    assert again == [], "a committed layer was solved again"
    if fault.counted is not None:
        assert status["restarts"][fault.counted] == 1


@pytest.mark.timeout(900)
def test_a_volume_that_is_full_and_freed_changes_no_byte(
    site: Site,
    plane: ControlPlane,
    shared_ground: Ground,
    expected_of_eight: dict[str, str],
    figures: dict[str, object],
    tmp_path: Path,
) -> None:
    """Filled in the middle of the work, freed when the job says that it cannot write."""
    models, data = shared_ground.models, shared_ground.data
    place = ground(plane.cluster, "full", models=models, data=data, folder=site.volumes)
    with place as own, node_faults.small_volume(site, own.out, tmp_path / "disk", megabytes=900):
        os.chown(own.out, WORKER_USER, WORKER_USER)
        job = own.submit(example("full", EIGHT_LAYERS))
        in_the_middle(own, job)
        before, filler = committed(own.output(job)), node_faults.fill(own.out)
        failure = wait_for("a failure", lambda: job.status().get("lastFailure"), seconds=180)
        filler.unlink()
        freed = time.monotonic()
        status = own.complete(job, seconds=420)
        again = [
            file for file, about in before.items() if written_again(own.output(job), file, about)
        ]
        figures |= {
            "fault": "output-volume-full-then-freed",
            "attempts": status["attempt"],
            "layers_committed_before": layers_of(before),
            "committed_layers_written_again": layers_of(dict.fromkeys(again)),
            "seconds_to_complete": round(time.monotonic() - freed, 1),
        }
        assert own.digests(job) == expected_of_eight
        assert failure["reason"] == "OutputUnwritable"
        assert "no space left" in failure["message"]
        assert again == []
        own.cluster.delete("quantizationjobs", job.name, namespace=own.namespace)
        wait_for("its pods gone", lambda: not job.pods(), seconds=120)


def in_the_middle(ground: Ground, job: Quantization) -> list[Json]:
    """Wait until some layers are committed and others are not; the pods by index."""
    job.wait_condition("WorkersReady", seconds=180)
    output = ground.output(job)
    wait_for(
        f"{STRIKES_AFTER} layers of {job.name} committed",
        lambda: layers_of(committed(output)) >= STRIKES_AFTER,
        seconds=180,
        every=0.01,
    )
    key = "batch.kubernetes.io/job-completion-index"
    return sorted(job.pods(), key=lambda pod: int(pod["metadata"]["labels"][key]))


def seconds_until_back(ground: Ground, job: Quantization, struck: float) -> float:
    """Seconds from the fault until a further layer is committed, or all is published."""
    output = ground.output(job)
    had = layers_of(committed(output))

    def further() -> bool:
        return output.exists() or layers_of(committed(output)) > had

    wait_for(f"{job.name} goes on", further, seconds=420, every=0.02)
    return round(time.monotonic() - struck, 1)


def written_again(output: Path, file: str, about: tuple[int, int]) -> bool:
    """Whether a file that was committed before a fault is another one by now."""
    _, name = file.split("/", 1)
    found = (output / name.removeprefix(PUBLISHED)).stat()
    return (found.st_ino, found.st_mtime_ns) != about

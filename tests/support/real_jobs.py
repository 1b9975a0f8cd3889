"""Jobs on nodes that run containers: a namespace with claims on folders, and the run to equal.

A node sees a claim as a folder of this machine, so a test looks into the work folder while the
pods write it. The reference is `quantfleet run` in one container of the workers' image: equal
bytes need the same libraries on both sides.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import quantization_jobs
from child_process import wait_for
from cluster_access import Cluster, Json
from containers import BuiltImage
from control_plane import wait_namespace_usable
from engine_runs import folder_digests
from manifests import edited
from quantfleet_api.names import JOB_NAME_LABEL
from quantization_jobs import Quantization

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "smollm2-w8a8.yaml"
WORKER_USER = 1000
MODEL = "smollm2-cut2"
PUBLISHED = "out/"
"""What of an attempt's folder becomes the output."""
APART = "spec.workers.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"
FEW_TEXTS: Mapping[str, object] = {
    "spec.calibration.sampleCount": 8,
    "spec.calibration.sequenceLength": 64,
    "spec.evaluation.windowCount": 2,
    "spec.evaluation.windowLength": 64,
    # a model without most of its layers says nothing, before and after
    "spec.evaluation.maxPerplexityRatio": "4",
}
EIGHT_LAYERS: Mapping[str, object] = {
    "spec.model.source.pvc.path": "smollm2-cut8",
    "spec.calibration.sampleCount": 32,
    "spec.calibration.sequenceLength": 128,
}
"""Edits for a job that lasts long enough to be struck in its middle."""


def example(name: str, edits: Mapping[str, object] | None = None) -> Json:
    """The example's manifest under a name of its own, with few texts and one pod a node."""
    document = yaml.safe_load(EXAMPLE.read_text())
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {JOB_NAME_LABEL: name}},
    }
    own = {
        APART: [apart],
        "metadata.name": name,
        "spec.output.pvc.path": name,
        "spec.model.source.pvc.path": MODEL,
    }
    return edited(document, {**FEW_TEXTS, **own, **(edits or {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A namespace that enforces restricted pod security, and the folders of its claims."""

    cluster: Cluster
    namespace: str
    models: Path
    data: Path
    out: Path

    def submit(self, body: Json) -> Quantization:
        """Create a job."""
        return quantization_jobs.submit(self.cluster, self.namespace, body)

    def output(self, job: Quantization) -> Path:
        """Where the job publishes, as this machine sees it."""
        return self.out / job.name

    def digests(self, job: Quantization) -> dict[str, str]:
        """SHA-256 of every file that the job published."""
        return folder_digests(self.output(job))

    def logs(self, job: Quantization) -> str:
        """What the job's pods said, as far as they are still there."""
        told = []
        for pod in job.pods():
            name = pod["metadata"]["name"]
            found = self.cluster.kubectl("logs", name, "-n", self.namespace, check=False)
            told.append(f"--- {name} on {pod['spec'].get('nodeName')}\n{found}")
        return "\n".join(told)

    def complete(self, job: Quantization, *, seconds: float = 240.0) -> Json:
        """Wait for the end, which must be Complete; the status."""

        def ended() -> bool:
            phase = job.status().get("phase")
            assert phase != "Failed", json.dumps(job.status(), indent=1) + self.logs(job)
            return phase == "Succeeded"

        try:
            wait_for(f"{job.name} complete", ended, seconds=seconds, every=0.2)
        except TimeoutError as late:
            raise TimeoutError(f"{late}\n{job.status()}\n{self.logs(job)}") from late
        return job.status()


def committed(output: Path) -> dict[str, tuple[int, int]]:
    """Files of layers that are committed in an output's work folder: inode and time of each.

    Empty before the first; the folder of an attempt is renamed by the next one, so that what is
    read may be gone a moment later.
    """
    work = output.with_name(output.name + ".work")
    found: dict[str, tuple[int, int]] = {}
    try:
        folder = max(work.glob("attempt-*"), key=lambda path: int(path.name.split("-")[1]))
        for layer in json.loads((folder / "journal.json").read_text())["layers"]:
            for name in layer["files"]:
                if name.startswith(PUBLISHED):
                    about = (folder / name).stat()
                    found[f"{layer['index']}/{name}"] = (about.st_ino, about.st_mtime_ns)
    except (OSError, ValueError):
        return {}
    return found


def layers_of(files: Mapping[str, object]) -> int:
    """How many layers the files of `committed` belong to."""
    return len({name.split("/")[0] for name in files})


@contextmanager
def ground(
    cluster: Cluster, namespace: str, *, models: Path, data: Path, folder: Path
) -> Iterator[Ground]:
    """Make a namespace with the three claims; delete it, and what was put out, at the end."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.create("namespaces", {"metadata": {"name": namespace, "labels": labels}})
    wait_namespace_usable(cluster, namespace)
    out = folder / namespace / "out"
    out.mkdir(parents=True)
    os.chown(out, WORKER_USER, WORKER_USER)
    made = Ground(cluster=cluster, namespace=namespace, models=models, data=data, out=out)
    for claim, place in (("models", models), ("data", data), ("out", out)):
        bind(cluster, namespace, claim, place)
    try:
        yield made
    finally:
        cluster.delete("namespaces", namespace)
        wait_for(
            f"{namespace} gone", lambda: cluster.find("namespaces", namespace) is None, seconds=180
        )
        for claim in ("models", "data", "out"):
            cluster.delete("persistentvolumes", f"{namespace}-{claim}")
        shutil.rmtree(folder / namespace)


def bind(cluster: Cluster, namespace: str, claim: str, place: Path) -> None:
    """A claim on a folder that every node sees, for any number of pods."""
    volume, size = f"{namespace}-{claim}", {"storage": "1Gi"}
    common: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    source = {"hostPath": {"path": str(place), "type": "Directory"}}
    reference = {"claimRef": {"namespace": namespace, "name": claim}}
    spec = {**common, "capacity": size, **source, **reference}
    cluster.create("persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
    asked = {**common, "volumeName": volume, "resources": {"requests": size}}
    body = {"metadata": {"name": claim}, "spec": asked}
    cluster.create("persistentvolumeclaims", body, namespace=namespace)

    def bound() -> bool:
        found = cluster.get("persistentvolumeclaims", claim, namespace=namespace)
        return bool(found["status"].get("phase") == "Bound")

    wait_for(f"claim {claim} of {namespace} bound", bound)


def reference(
    image: BuiltImage, manifest: Json, *, models: Path, data: Path, folder: Path
) -> dict[str, str]:
    """What `quantfleet run` of the manifest publishes in one plain container; SHA-256 by file."""
    out = folder / "out"
    out.mkdir(parents=True)
    os.chown(out, WORKER_USER, WORKER_USER)
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(manifest))
    volumes = {models: "/volumes/models", data: "/volumes/data", out: "/volumes/out"}
    words = [f"--volume={name}=/volumes/{name}" for name in ("models", "data", "out")]
    done = image.run(
        *("quantfleet", "run", "/job/job.yaml", *words),
        volumes={**volumes, folder: "/job"},
        environment={"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder_digests(out / manifest["spec"]["output"]["pvc"]["path"])

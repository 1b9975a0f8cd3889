"""Whether a job can be run at all, and the job with all of its values resolved.

Called by reconcile. The schema refuses most mistakes when a job is applied; what it cannot say is
said here, as InvalidInput that names the field, its rule and its value. Such a job is final: no
change in the cluster can mend it.
"""

from dataclasses import dataclass

from quantfleet_api.errors import InvalidInput
from quantfleet_api.loading import parse_job
from quantfleet_api.names import (
    API_VERSION,
    KIND,
    MOST_ATTEMPTS,
    MOST_HOST_NAME,
    RESERVED_LABEL_PREFIXES,
    RESERVED_LABELS,
    fits,
    host_name,
)
from quantfleet_api.spec import JobSpec, Workers, resolve
from quantfleet_operator.manifests.environment import RESERVED_VARIABLES
from quantfleet_operator.observed import JobView
from quantfleet_operator.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A job that can be run."""

    namespace: str
    name: str
    uid: str
    spec: JobSpec
    """Resolved; `workers.count` and `workers.image` are given."""

    @property
    def count(self) -> int:
        """Number of pods."""
        assert self.spec.workers.count is not None, "resolved in admit()"
        return self.spec.workers.count

    @property
    def image(self) -> str:
        """Image of the worker container."""
        assert self.spec.workers.image is not None, "resolved in admit()"
        return self.spec.workers.image


def admit(job: JobView, settings: Settings) -> Admitted:
    """The job as it will be run; raises InvalidInput where it never can be."""
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name},
        "spec": dict(job.spec),
    }
    resolved = resolve(parse_job(manifest))
    workers = _resolved_workers(resolved.spec.workers, job.status.worker_image, settings)
    _check_names(job, workers)
    _check_devices(workers)
    spec = resolved.spec.model_copy(update={"workers": workers})
    return Admitted(namespace=job.namespace, name=job.name, uid=job.uid, spec=spec)


def _resolved_workers(workers: Workers, fixed_image: str | None, settings: Settings) -> Workers:
    image = workers.image or fixed_image or settings.worker_image
    if not image:
        rule = "is required, because this operator has no default worker image"
        raise InvalidInput("spec.workers.image", None, rule)
    return workers.model_copy(update={"count": workers.count or 1, "image": image})


def _check_names(job: JobView, workers: Workers) -> None:
    if not fits(job.name, workers.count or 1):
        longest = host_name(job.name, job.uid, MOST_ATTEMPTS, (workers.count or 1) - 1)
        rule = (
            f"makes host names of {len(longest)} characters, at most {MOST_HOST_NAME} are allowed"
        )
        raise InvalidInput("metadata.name", job.name, rule)
    for key in workers.labels:
        if key in RESERVED_LABELS or key.startswith(RESERVED_LABEL_PREFIXES):
            raise InvalidInput("spec.workers.labels", key, "must not name a label of the system")
    for variable in workers.env:
        if variable.name in RESERVED_VARIABLES:
            rule = "must not name a variable that the operator sets"
            raise InvalidInput("spec.workers.env", variable.name, rule)


def _check_devices(workers: Workers) -> None:
    devices, processes = workers.devices_per_worker, workers.processes_per_worker
    if devices and processes > devices:
        rule = f"must be at most devicesPerWorker ({devices}), since each process has its own"
        raise InvalidInput("spec.workers.processesPerWorker", processes, rule)

"""The jobs that there are, as the watch brought them; a newer version wins, whoever brings it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from quantfleet_api.status import ConditionType, JobStatus

Raw = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A QuantizationJob, as far as the server needs it."""

    namespace: str
    name: str
    uid: str
    version: int
    """The resource version: a number that grows with each change."""
    created: str
    status: JobStatus

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def terminal(self) -> bool:
        """Whether the status is final (law L10)."""
        ends = (ConditionType.COMPLETE, ConditionType.FAILED)
        return any(item.type in ends and item.status == "True" for item in self.status.conditions)


def parse_job(raw: Raw) -> Job:
    """A job as the API server has it; a status that only another version understands is empty."""
    meta = raw["metadata"]
    try:
        status = JobStatus.model_validate(raw.get("status") or {})
    except ValidationError:
        status = JobStatus()
    return Job(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=int(meta["resourceVersion"]),
        created=meta.get("creationTimestamp") or "",
        status=status,
    )


@dataclass(slots=True)
class Jobs:
    """All jobs; lives in one event loop."""

    _jobs: dict[Key, Job] = field(default_factory=dict)

    def find(self, namespace: str, name: str) -> Job | None:
        """A job, if it is there."""
        return self._jobs.get((namespace, name))

    def __iter__(self) -> Iterator[Job]:
        """All jobs, by namespace and name."""
        return (self._jobs[key] for key in sorted(self._jobs))

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: Job) -> bool:
        """Takes a version of a job in; False where it is not newer than what is known."""
        known = self._jobs.get(job.key)
        if known is not None and known.version >= job.version:
            return False
        self._jobs[job.key] = job
        return True

    def remove(self, job: Job) -> bool:
        """A job is gone, unless one of its name was made since; False where it was not known."""
        known = self._jobs.get(job.key)
        if known is None or known.version > job.version:
            return False
        del self._jobs[job.key]
        return True

    def missing(self, there: set[Key], version: int, namespace: str | None) -> tuple[Job, ...]:
        """Jobs that a list of a namespace (None: of all), as it was at a version, does not have."""
        return tuple(
            job
            for key, job in self._jobs.items()
            if key not in there and job.version <= version and namespace in (None, job.namespace)
        )

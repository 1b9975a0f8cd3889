"""One job at one moment, with what reconcile derives from it again and again."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from quantfleet_api.spec import RunPolicy
from quantfleet_api.status import JobStatus
from quantfleet_operator.admission import Admitted
from quantfleet_operator.evidence import past_grace
from quantfleet_operator.observed import ChildJob, JobView, Observed, Pod
from quantfleet_operator.settings import Settings

MOST_INDEXES = 1000
"""Characters of the list of failed indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What reconcile works on; the status that grows on the way is passed beside it."""

    view: JobView
    job: Admitted
    observed: Observed
    now: datetime
    settings: Settings

    @property
    def policy(self) -> RunPolicy:
        """How long, how often, whether suspended."""
        return self.job.spec.run_policy


def child_of(observed: Observed, attempt: int) -> ChildJob | None:
    """The Job of an attempt, if it exists."""
    return next((job for job in observed.jobs if job.attempt == attempt and attempt > 0), None)


def pods_of(observed: Observed, attempt: int) -> tuple[Pod, ...]:
    """The pods of an attempt that the API server still has."""
    return tuple(pod for pod in observed.pods if pod.attempt == attempt and not pod.gone)


def old_pods(case: Case, status: JobStatus) -> tuple[Pod, ...]:
    """Pods of earlier attempts that a new one must wait for (rule C1)."""
    return tuple(
        pod
        for pod in case.observed.pods
        if pod.attempt < status.attempt and not pod.terminal and not past_grace(pod, case.now)
    )


def counted(status: JobStatus, child: ChildJob | None, observed: Observed) -> JobStatus:
    """The status with the worker counts of its present attempt."""
    failed = {
        pod.index
        for pod in observed.pods
        if pod.attempt == status.attempt and pod.index is not None and _failed(pod)
    }
    update: dict[str, object] = {"failed_indexes": ranges(failed)}
    if child is not None:
        update |= {
            "active": child.active,
            "ready": child.ready,
            "succeeded": child.succeeded,
            "failed": child.failed,
        }
    return status.model_copy(update={"workers": status.workers.model_copy(update=update)})


def _failed(pod: Pod) -> bool:
    return pod.phase == "Failed" or (pod.exit is not None and pod.exit.code != 0)


def ranges(indexes: Iterable[int]) -> str:
    """Indexes as a batch/v1 Job writes them, such as "1,3-5"; cut where it gets too long."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return text if len(text) <= MOST_INDEXES else text[:MOST_INDEXES].rsplit(",", 1)[0] + ",..."


def ours(before: JobStatus, after: JobStatus) -> bool:
    """Whether two statuses say the same as far as the operator writes them."""
    return before.model_copy(update={"progress": None}) == after.model_copy(
        update={"progress": None}
    )

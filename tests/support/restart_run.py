"""An operator that was away while all of its jobs moved on: how soon it has caught up.

Used by the benchmark, which gives the seconds, and by the suite, which waits six times the bound.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pod_states
from child_process import wait_for
from cluster_access import Json
from quantization_jobs import PUBLISHED, Quantization
from status_history import truth
from workplaces import Workplace

BOUND_SECONDS = 10.0
"""What the operator promises: from its start until every job is where it belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affair:
    """What happens to a running job while nobody looks, and what must come of it."""

    happens: Callable[[Quantization, list[Json]], None]
    happened: Callable[[Quantization], bool]
    caught_up: Callable[[Quantization], bool]


def _finish(job: Quantization, pods: list[Json], index: int, code: int, message: str = "") -> None:
    pod_states.finish(job.cluster, pods[index], code, message=message)


def _job_says(kind: str) -> Callable[[Quantization], bool]:
    return lambda job: truth((job.job(1) or {}).get("status", {}), kind) == "True"


def _gone(job: Quantization) -> bool:
    found = job.cluster.find("quantizationjobs", job.name, namespace=job.namespace)
    return found is None and not job.children() and not job.pods()


def _suspended(job: Quantization) -> bool:
    child = job.job(1)
    asleep = child is not None and child["spec"].get("suspend") is True
    return asleep and truth(job.status(), "Suspended") == "True"


def _second_attempt(cause: str) -> Callable[[Quantization], bool]:
    """Counted as what it was, and begun; its pods may need longer."""

    def met(job: Quantization) -> bool:
        status = job.status()
        counted = (status["attempt"], status["restarts"][cause]) == (2, 1)
        return counted and job.job(2) is not None

    return met


SUCCESS = Affair(
    happens=lambda job, pods: _finish(job, pods, 0, 0, PUBLISHED),
    happened=_job_says("SuccessCriteriaMet"),
    caught_up=lambda job: truth(job.status(), "Complete") == "True",
)
FAILURE = Affair(
    happens=lambda job, pods: _finish(job, pods, 1, 1, "injected by a test"),
    happened=_job_says("FailureTarget"),
    caught_up=_second_attempt("application"),
)
DISRUPTION = Affair(
    happens=lambda job, pods: pod_states.evict(job.cluster, pods[1]),
    happened=_job_says("FailureTarget"),
    caught_up=_second_attempt("disruption"),
)
SUSPENSION = Affair(
    happens=lambda job, pods: job.change(suspend=True),
    happened=lambda job: job.read()["spec"]["runPolicy"]["suspend"] is True,
    caught_up=_suspended,
)
DELETION = Affair(
    happens=lambda job, pods: job.delete(),
    happened=_gone,  # by the garbage collector, without any operator
    caught_up=_gone,
)
AFFAIRS = (SUCCESS, FAILURE, DISRUPTION, SUSPENSION, DELETION)


def catch_up(workplace: Workplace, jobs: int, *, seconds: float) -> float:
    """Kill the operator with `jobs` running, let all move on, start it; seconds until it caught up.

    From the start of the process, so with its imports. TimeoutError after `seconds`.
    """
    submitted = [
        (AFFAIRS[number % len(AFFAIRS)], *workplace.submit_running("away"))
        for number in range(jobs)
    ]
    workplace.operator.kill()
    for affair, job, pods in submitted:
        affair.happens(job, pods)
    for affair, job, _ in submitted:
        _wait(f"what happens to {job.name}", affair.happened, job, seconds=60)
    begun = time.monotonic()
    workplace.operator.start(wait=False)
    for affair, job, _ in submitted:
        left = max(0.1, begun + seconds - time.monotonic())
        _wait(f"{job.name} caught up", affair.caught_up, job, seconds=left)
    return time.monotonic() - begun


def _wait(
    what: str, condition: Callable[[Quantization], bool], job: Quantization, *, seconds: float
) -> None:
    wait_for(what, lambda: condition(job), seconds=seconds)

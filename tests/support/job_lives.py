"""Whole lives of a job, driven from its pods' side, each with the end that it must reach.

Used where the operator is killed or cut off on the way: whatever happens to it, the end is the
same, and so is what was counted.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pod_states
from child_process import wait_for
from cluster_access import Cluster, Json, Refused
from quantfleet_api.names import attempt_of
from quantization_jobs import PUBLISHED, Quantization, publishes
from simulated_kubelet import Exit
from status_history import truth
from workplaces import Workplace

LIFE_SECONDS = 120.0
"""How long a step of a life may take, unless the operator is killed all the time."""


def attempt_of_pod(pod: Json) -> int:
    return attempt_of(pod["metadata"]["labels"]) or 0


def fails_once(pod: Json) -> Exit | None:
    """Rank 1 of the first attempt ends with 1; the second attempt publishes."""
    if attempt_of_pod(pod) > 1:
        return publishes(pod)
    if pod_states.index_of(pod) == 1:
        return Exit(code=1, message="injected by a test")
    return None


def evicted_once(cluster: Cluster) -> Callable[[Json], Exit | None]:
    """Rank 1 of the first attempt is evicted; the second attempt publishes."""

    def behaviour(pod: Json) -> Exit | None:
        if attempt_of_pod(pod) > 1:
            return publishes(pod)
        if pod_states.index_of(pod) == 1:
            try:
                pod_states.evict(cluster, pod)
            except Refused as refused:
                if refused.status != 404:
                    raise
        return None

    return behaviour


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What a life must come to."""

    attempts: int
    application: int = 0
    disruption: int = 0


Revive = Callable[[], None]
"""Called again and again while a life waits: starts the operator if it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """What is done for a life while it waits, and how long a step of it may take."""

    revive: Revive = lambda: None
    seconds: float = LIFE_SECONDS


def _until(what: str, care: Care, condition: Callable[[], object]) -> None:
    def met() -> bool:
        care.revive()
        return bool(condition())

    wait_for(what, met, seconds=care.seconds)


def _until_complete(job: Quantization, care: Care) -> None:
    _until(f"{job.name} complete", care, lambda: truth(job.status(), "Complete") == "True")


def live_success(workplace: Workplace, care: Care) -> tuple[Quantization, End]:
    job = workplace.submit("success", behaviour=publishes)
    _until_complete(job, care)
    return job, End(attempts=1)


def live_failure(workplace: Workplace, care: Care) -> tuple[Quantization, End]:
    job = workplace.submit("failure", behaviour=fails_once)
    _until_complete(job, care)
    return job, End(attempts=2, application=1)


def live_disruption(workplace: Workplace, care: Care) -> tuple[Quantization, End]:
    job = workplace.submit("disruption", behaviour=evicted_once(workplace.cluster))
    _until_complete(job, care)
    return job, End(attempts=2, disruption=1)


def live_suspension(workplace: Workplace, care: Care) -> tuple[Quantization, End]:
    """Suspended while it runs, resumed, and then published."""
    resumed = threading.Event()

    def behaviour(pod: Json) -> Exit | None:
        return publishes(pod) if resumed.is_set() else None

    job = workplace.submit("suspension", behaviour=behaviour)
    _until("workers ready", care, lambda: truth(job.status(), "WorkersReady") == "True")
    job.change(suspend=True)
    _until("suspended", care, lambda: truth(job.status(), "Suspended") == "True")
    _until("pods gone", care, lambda: not job.pods())
    resumed.set()
    job.change(suspend=False)
    _until_complete(job, care)
    return job, End(attempts=1)


def live_deletion(workplace: Workplace, care: Care) -> tuple[Quantization, None]:
    """Deleted while it runs; nothing is left."""
    job = workplace.submit("deletion", behaviour=lambda pod: None)
    _until("workers ready", care, lambda: truth(job.status(), "WorkersReady") == "True")
    job.delete()
    find = job.cluster.find

    def gone() -> bool:
        found = find("quantizationjobs", job.name, namespace=job.namespace)
        return found is None and not job.children() and not job.pods()

    _until("nothing left", care, gone)
    return job, None


LIVES: dict[str, Callable[[Workplace, Care], tuple[Quantization, End | None]]] = {
    "success": live_success,
    "failure": live_failure,
    "disruption": live_disruption,
    "suspension": live_suspension,
    "deletion": live_deletion,
}


def judge(job: Quantization, end: End | None) -> None:
    """The end is the one that was to be reached, with every Job made once."""
    if end is None:
        return
    status = job.status()
    counts = status["restarts"]
    reached = (status["attempt"], counts["application"], counts["disruption"])
    assert reached == (end.attempts, end.application, end.disruption), status
    assert status["phase"] == "Succeeded"
    assert status["output"]["digest"] in PUBLISHED
    names = [child["metadata"]["name"] for child in job.jobs()]
    assert names == [status["jobRef"]["name"]]

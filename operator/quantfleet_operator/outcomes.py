"""The end of a job: complete, failed, or refused as it stands; and what still goes on afterwards.

A final status is never touched again (law L10), but for the generation that was seen. What goes on
is level-triggered from it: Jobs that still run are stopped, and children go when their time to live
is over. The job itself is never deleted.
"""

from datetime import datetime

from quantfleet_api.names import child_name
from quantfleet_api.status import ConditionType, JobReference, JobStatus, PublishedOutput
from quantfleet_api.termination import Termination, parse_termination
from quantfleet_operator.case import Case, child_of, counted
from quantfleet_operator.conditions import (
    Truth,
    holds,
    phase_of,
    reason_of,
    with_all_conditions,
    with_condition,
)
from quantfleet_operator.deadlines import children_go_in, stop_clocks
from quantfleet_operator.decision import Action, Decision, Delete, Event
from quantfleet_operator.observed import ChildJob, JobView, Observed, Pod, format_time

LATE_POD_SECONDS = 10
"""How long the pod of rank 0 may lag behind its Job before its last words are given up."""
WITHOUT_CHILDREN = frozenset({"WorkersNotReady", "DeadlineExceeded"})
"""Reasons of Failed after which nothing of the job is left to read: all children go at once."""


def published_at(observed: Observed, attempt: int) -> datetime | None:
    """When rank 0 exited with 0, which it does only after publishing; None before.

    Its Job says so as SuccessCriteriaMet (rule C4); where a peer fails in the same second, the Job
    may say that it failed, and only the pod tells.
    """
    child, first = child_of(observed, attempt), _first_pod(observed, attempt)
    if child is not None and child.success is not None:
        return child.completion_time or child.success.time
    return first.exit.time if first and first.exit and first.exit.code == 0 else None


def complete(case: Case, status: JobStatus, at: datetime) -> Decision:
    """Rank 0 published and exited with 0; its last words say what (rule C8)."""
    first = _first_pod(case.observed, status.attempt)
    late = (case.now - at).total_seconds() < LATE_POD_SECONDS
    if late and (first is None or (first.exit is None and not first.gone)):
        return Decision(requeue_after=1)
    said = Termination()
    if first is not None and first.exit is not None:
        said = parse_termination(first.exit.message)
    child = child_of(case.observed, status.attempt)
    pvc = case.job.spec.output.pvc
    output = PublishedOutput(
        path=f"{pvc.claim_name}/{pvc.path}",
        digest=said.manifest_digest,
        size_bytes=said.size_bytes,
        file_count=said.file_count,
        warnings=said.warnings,
    )
    status = counted(status, child, case.observed).model_copy(update={"output": output})
    if child is not None and status.job_ref is None:  # it ended before anybody could say it began
        reference = JobReference(name=child.name, uid=child.uid)
        status = status.model_copy(update={"job_ref": reference})
    if said.manifest_digest:
        text = f"published {output.path} with manifest digest {said.manifest_digest}"
        status = _with(status, ConditionType.OUTPUT_VERIFIED, "True", "Verified", text, case.now)
    else:
        text = f"{output.path} was published, but rank 0 left no digest of it"
        status = _with(status, ConditionType.OUTPUT_VERIFIED, "Unknown", "NoDigest", text, case.now)
    status = _with(status, ConditionType.COMPLETE, "True", "Published", text, case.now)
    status = _with(status, ConditionType.FAILED, "False", "Published", "", case.now)
    status = _ended(status, at, "Finished", case.now)
    return Decision(status=status, events=(Event(reason="Succeeded", message=text),))


def fail(status: JobStatus, reason: str, message: str, *, at: datetime, now: datetime) -> JobStatus:
    """The final status of a job that failed."""
    status = _with(status, ConditionType.FAILED, "True", reason, message, now)
    status = _with(status, ConditionType.COMPLETE, "False", reason, "", now)
    if not holds(status, ConditionType.OUTPUT_VERIFIED):
        status = _with(status, ConditionType.OUTPUT_VERIFIED, "False", "NothingPublished", "", now)
    return _ended(status, at, "Failed", now)


def refuse(view: JobView, message: str, now: datetime) -> Decision:
    """A job that can never work: Accepted=False and Failed=True in one write, and no child."""
    status = view.status.model_copy(update={"observed_generation": view.generation})
    status = _with(status, ConditionType.ACCEPTED, "False", "InvalidSpec", message, now)
    status = fail(status, "InvalidSpec", message, at=now, now=now)
    event = Event(reason="ValidationFailed", message=message, type="Warning", action="Validate")
    return Decision(status=status, events=(event,))


def finished(view: JobView, observed: Observed, now: datetime) -> Decision:
    """What goes on after the end."""
    status = None
    if view.status.observed_generation != view.generation:
        status = view.status.model_copy(update={"observed_generation": view.generation})
    left = children_go_in(view.status, _ttl(view), now)
    reason = reason_of(view.status, ConditionType.FAILED)
    if left == 0 or (holds(view.status, ConditionType.FAILED) and reason in WITHOUT_CHILDREN):
        return Decision(status=status, actions=_delete_all(view, observed))
    return Decision(status=status, actions=_stop(view, observed), requeue_after=left)


def _stop(view: JobView, observed: Observed) -> tuple[Action, ...]:
    """Deletes Jobs that would run on; one that ended stays, with its pods' logs."""
    failed = holds(view.status, ConditionType.FAILED)
    current = child_of(observed, view.status.attempt)
    return tuple(
        delete_job(job)
        for job in observed.jobs
        if not job.deleting
        and (job.attempt < view.status.attempt or (job is current and failed and not job.failure))
    )


def _delete_all(view: JobView, observed: Observed) -> tuple[Action, ...]:
    """All children; the Service last, since as long as it is there others may be."""
    jobs = tuple(delete_job(job) for job in observed.jobs if not job.deleting)
    if not observed.service_exists:
        return jobs
    name = child_name(view.name, view.uid)
    small = (
        Delete(api_version="networking.k8s.io/v1", kind="NetworkPolicy", name=name),
        Delete(api_version="v1", kind="ConfigMap", name=name),
        Delete(api_version="v1", kind="ServiceAccount", name=name),
        Delete(api_version="v1", kind="Service", name=name),
    )
    return (*jobs, *small)


def delete_job(job: ChildJob) -> Delete:
    """Deletes this very Job, its pods in the background."""
    return Delete(api_version="batch/v1", kind="Job", name=job.name, uid=job.uid)


def _ttl(view: JobView) -> int | None:
    """From the spec as it stands, which need not be valid in a job that was refused."""
    policy = view.spec.get("runPolicy")
    ttl = policy.get("ttlSecondsAfterFinished") if isinstance(policy, dict) else None
    return ttl if isinstance(ttl, int) else None


def _first_pod(observed: Observed, attempt: int) -> Pod | None:
    """Rank 0's pod: the one that exited with 0 where there are several."""
    pods = [pod for pod in observed.pods if pod.attempt == attempt and pod.index == 0]
    return min(pods, key=lambda pod: pod.exit is None or pod.exit.code != 0, default=None)


def _ended(status: JobStatus, at: datetime, reason: str, now: datetime) -> JobStatus:
    status = stop_clocks(status, at)
    status = _with(status, ConditionType.WORKERS_READY, "False", reason, "", now)
    status = _with(status, ConditionType.PROGRESSING, "False", reason, "", now)
    status = _with(status, ConditionType.SUSPENDED, "False", reason, "", now)
    update = {"completion_time": format_time(at), "not_before": None}
    status = with_all_conditions(status.model_copy(update=update), now=now)
    return status.model_copy(update={"phase": phase_of(status)})


def _with(
    status: JobStatus,
    kind: ConditionType,
    truth: Truth,
    reason: str,
    message: str,
    now: datetime,
) -> JobStatus:
    return with_condition(status, kind, truth, reason, message, now=now)

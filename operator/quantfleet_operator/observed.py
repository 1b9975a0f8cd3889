"""What is observed: frozen views of API objects, of which reconcile sees nothing else.

The store parses every object once, as it arrives; the rest of the operator never touches raw
objects. An object of the API server always has its metadata, so only its status is read with care.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from quantfleet_api.names import GROUP, JOB_UID_LABEL, attempt_of
from quantfleet_api.status import JobStatus

Raw = Mapping[str, Any]
WORKER_CONTAINER = "worker"
SUSPENDED_ANNOTATION = f"{GROUP}/suspended"
"""On a Job: the operator suspended it, so the operator resumes it."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A QuantizationJob: what was asked for, and what was last said about it."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    deleting: bool
    spec: Raw
    status: JobStatus
    has_status: bool
    """False until the operator wrote a status for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A condition of a Job or pod that is True."""

    reason: str
    message: str
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildJob:
    """A batch/v1 Job of ours."""

    name: str
    uid: str
    attempt: int
    resource_version: str
    deleting: bool
    suspended: bool
    suspended_by_us: bool
    """Whether it was the operator that suspended it last."""
    active: int
    ready: int
    succeeded: int
    failed: int
    conditions: Mapping[str, Happened]
    completion_time: datetime | None

    @property
    def failure(self) -> Happened | None:
        """FailureTarget, which comes at the first failure, or Failed (rule C4)."""
        return self.conditions.get("FailureTarget") or self.conditions.get("Failed")

    @property
    def success(self) -> Happened | None:
        """SuccessCriteriaMet, which comes when rank 0 exits with 0, or Complete (rule C4)."""
        return self.conditions.get("SuccessCriteriaMet") or self.conditions.get("Complete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How the worker container ended."""

    code: int
    reason: str
    message: str
    time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why something does not start."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A worker pod."""

    name: str
    uid: str
    job_uid: str
    """UID of the QuantizationJob, from the pod's label."""
    attempt: int
    index: int | None
    node: str
    phase: str
    resource_version: str
    deletion_time: datetime | None
    """When the pod should be gone."""
    grace_seconds: int
    asked: datetime | None
    """When its deletion was first asked for: `grace_seconds` before `deletion_time`, but both move
    when the kubelet lets the pod go, so what was seen earlier counts."""
    ready: bool
    disruption: Happened | None
    """The DisruptionTarget condition."""
    exit: Exit | None
    pod_reason: str
    pod_message: str
    hold: Hold | None
    gone: bool = False
    """Whether the API server no longer has it; it is remembered until its attempt is over."""

    @property
    def terminal(self) -> bool:
        """Whether none of its containers runs any more."""
        return self.gone or self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim that the job names."""

    name: str
    exists: bool
    phase: str = ""
    access_modes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that reconcile knows about a job's surroundings."""

    jobs: tuple[ChildJob, ...] = ()
    pods: tuple[Pod, ...] = ()
    service_exists: bool = False
    rejection: str = ""
    """What the API server says of the Job in a dry run, where it will never take it."""
    refusal: Hold | None = None
    """Why a child could not be created the last time that it was tried."""
    namespace_ending: bool = False
    warnings: tuple[Hold, ...] = ()
    """Warning events about the attempt's Job and its waiting pods, the latest first."""
    claims: tuple[Claim, ...] = field(default_factory=tuple)
    trust_stale: bool = False
    """Whether the workers may trust an authority of the status server that is no longer its."""


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time of the API server, in UTC."""
    return None if not text else datetime.fromisoformat(text).astimezone(UTC)


def format_time(time: datetime) -> str:
    """RFC 3339 in UTC, in whole seconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_quantization_job(raw: Raw) -> JobView:
    """The view of a QuantizationJob; a status that is not there is an empty one."""
    meta = raw["metadata"]
    return JobView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        resource_version=meta["resourceVersion"],
        deleting="deletionTimestamp" in meta,
        spec=raw.get("spec") or {},
        status=JobStatus.model_validate(raw.get("status") or {}, by_alias=True, by_name=False),
        has_status="observedGeneration" in (raw.get("status") or {}),
    )


def parse_job(raw: Raw) -> ChildJob:
    """The view of a batch/v1 Job."""
    meta, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    return ChildJob(
        name=meta["name"],
        uid=meta["uid"],
        attempt=attempt_of(meta.get("labels") or {}) or 0,
        resource_version=meta["resourceVersion"],
        deleting="deletionTimestamp" in meta,
        suspended=bool(spec.get("suspend")),
        suspended_by_us=SUSPENDED_ANNOTATION in (meta.get("annotations") or {}),
        active=status.get("active") or 0,
        ready=status.get("ready") or 0,
        succeeded=status.get("succeeded") or 0,
        failed=status.get("failed") or 0,
        conditions=_true_conditions(status),
        completion_time=parse_time(status.get("completionTime")),
    )


def parse_pod(raw: Raw) -> Pod:
    """The view of a worker pod."""
    meta, status = raw["metadata"], raw.get("status") or {}
    labels, true = meta.get("labels") or {}, _true_conditions(status)
    index = (meta.get("annotations") or {}).get(INDEX_ANNOTATION, "")
    deletion_time = parse_time(meta.get("deletionTimestamp"))
    grace = meta.get("deletionGracePeriodSeconds") or 0
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        job_uid=labels.get(JOB_UID_LABEL, ""),
        attempt=attempt_of(labels) or 0,
        index=int(index) if index.isdigit() else None,
        node=raw["spec"].get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        resource_version=meta["resourceVersion"],
        deletion_time=deletion_time,
        grace_seconds=grace,
        asked=deletion_time - timedelta(seconds=grace) if deletion_time else None,
        ready="Ready" in true,
        disruption=true.get("DisruptionTarget"),
        exit=_exit(status),
        pod_reason=status.get("reason") or "",
        pod_message=status.get("message") or "",
        hold=_hold(status),
    )


def _true_conditions(status: Raw) -> dict[str, Happened]:
    return {
        condition["type"]: Happened(
            reason=condition.get("reason") or "",
            message=condition.get("message") or "",
            time=parse_time(condition.get("lastTransitionTime")) or datetime.fromtimestamp(0, UTC),
        )
        for condition in status.get("conditions") or ()
        if condition.get("status") == "True"
    }


def _worker_state(status: Raw, state: str) -> Raw | None:
    for container in status.get("containerStatuses") or ():
        if container["name"] == WORKER_CONTAINER:
            found: Raw | None = (container.get("state") or {}).get(state)
            return found
    return None


def _exit(status: Raw) -> Exit | None:
    ended = _worker_state(status, "terminated")
    if ended is None:
        return None
    return Exit(
        code=ended.get("exitCode", 0),
        reason=ended.get("reason") or "",
        message=ended.get("message") or "",
        time=parse_time(ended.get("finishedAt")),
    )


def _hold(status: Raw) -> Hold | None:
    """What keeps the pod from running, in the words of scheduler or kubelet."""
    waiting = _worker_state(status, "waiting")
    if waiting is not None and waiting.get("reason"):
        return Hold(reason=waiting["reason"], message=waiting.get("message") or "")
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            reason = condition.get("reason") or "Unschedulable"
            return Hold(reason=reason, message=condition.get("message") or "")
    return None

"""Why workers are not ready: the one reason that a person should act upon.

What holds workers back is said in WorkersReady; it becomes a failure only when the job's
preRunningDeadlineSeconds are over, because a missing claim, quota or image may still come.
"""

import re
from collections.abc import Iterable
from datetime import datetime

from quantfleet_operator.deadlines import seconds_since
from quantfleet_operator.observed import ChildJob, Claim, Hold, JobView, Observed, Pod

DIAGNOSE_AFTER_SECONDS = 5
"""Pods that start within this time need no explanation."""
DIAGNOSE_EVERY_SECONDS = 30

_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CREATE = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_NO_REASON = frozenset({"ContainerCreating", "PodInitializing"})
_VOLUME_EVENTS = frozenset({"FailedMount", "FailedAttachVolume"})
_MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
_MOST_TOLD = 600


def needs_diagnosis(job: JobView, now: datetime) -> bool:
    """Whether the job waits for its workers for so long that its events should be read."""
    since = job.status.waiting_since
    if since is None or job.status.job_ref is None or job.deleting:
        return False
    return seconds_since(since, now) >= DIAGNOSE_AFTER_SECONDS


def hold_of(child: ChildJob | None, observed: Observed, pods: Iterable[Pod], count: int) -> Hold:
    """The reason that holds an attempt's workers back, gravest first."""
    if observed.refusal is not None:
        return observed.refusal
    waiting = [pod for pod in pods if not pod.terminal and not pod.ready]
    claims = _claims_hold(observed.claims, [pod for pod in pods if not pod.terminal])
    if claims is not None and waiting:
        return claims
    for pod in sorted(waiting, key=lambda pod: pod.index if pod.index is not None else 0):
        found = _pod_hold(pod)
        if found is not None:
            return found
    from_events = _events_hold(observed.warnings)
    if from_events is not None:
        return from_events
    ready = 0 if child is None else child.ready + child.succeeded
    return Hold(reason="WaitingForWorkers", message=f"{ready} of {count} workers are ready")


def _pod_hold(pod: Pod) -> Hold | None:
    hold = pod.hold
    if hold is None or hold.reason in _NO_REASON:
        return None
    who = f"worker {pod.index}" if pod.index is not None else pod.name
    message = f"{who}: {hold.reason}: {hold.message}"[:_MOST_TOLD]
    if hold.reason in _IMAGE:
        return Hold(reason="ImagePullFailed", message=message)
    if hold.reason in _CREATE:
        return Hold(reason="ContainerNotCreated", message=message)
    if _MISSING_CLAIM.search(hold.message):
        return Hold(reason="ClaimNotFound", message=message)
    if "unbound immediate PersistentVolumeClaims" in hold.message:
        return Hold(reason="ClaimNotBound", message=message)
    reason = "Unschedulable" if hold.reason == "Unschedulable" else "WorkerHeld"
    return Hold(reason=reason, message=message)


def _claims_hold(claims: Iterable[Claim], pods: Iterable[Pod]) -> Hold | None:
    nodes = sorted({pod.node for pod in pods if pod.node})
    for claim in claims:
        if not claim.exists:
            message = f"claim {claim.name} does not exist in the job's namespace"
            return Hold(reason="ClaimNotFound", message=message)
        shared = not claim.access_modes or {"ReadWriteMany", "ReadOnlyMany"} & set(
            claim.access_modes
        )
        if not shared and len(nodes) > 1:
            modes = ", ".join(claim.access_modes)
            message = (
                f"claim {claim.name} is {modes}, so one node at a time can use it, but the workers "
                f"are on {len(nodes)}: {', '.join(nodes)}"
            )
            return Hold(reason="ClaimNotShared", message=message[:_MOST_TOLD])
    return None


def _events_hold(warnings: Iterable[Hold]) -> Hold | None:
    for warning in warnings:
        message = f"{warning.reason}: {warning.message}"[:_MOST_TOLD]
        if warning.reason == "FailedCreate":
            return refused(message)
        if warning.reason in _VOLUME_EVENTS:
            return Hold(reason="VolumeNotMounted", message=message)
    return None


def refused(message: str) -> Hold:
    """Why the API server did not take a pod or another child."""
    if "exceeded quota" in message or "failed quota" in message:
        return Hold(reason="QuotaExceeded", message=message[:_MOST_TOLD])
    return Hold(reason="CreationRefused", message=message[:_MOST_TOLD])


def children_missing(observed: Observed, child_name: str) -> bool:
    """Whether pods cannot start because somebody deleted one of the job's own small children."""
    return any(f'"{child_name}" not found' in warning.message for warning in observed.warnings)

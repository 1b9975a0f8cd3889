"""What ended an attempt, told from its pods (rule C3).

A Job's own conditions cannot say it: when an evicted pod's peer exits first, the Job speaks of its
back-off limit; a pod that was deleted by hand leaves no trace in it. So every pod is judged as it
is seen, the worst is remembered in `status.lastFailure` as soon as it is seen, and the pod that is
named is the one at the root: among those with the worst evidence, the one that ended first.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from quantfleet_api.errors import ExitCode
from quantfleet_api.quantities import shown_bytes
from quantfleet_api.status import MOST_MESSAGE, Cause, Failure
from quantfleet_api.termination import parse_termination
from quantfleet_operator.observed import ChildJob, Happened, Pod, format_time

LOST_AFTER = timedelta(seconds=60)
"""How long past the end of its grace period a pod is waited for (rule C1)."""

COLLATERAL = frozenset({ExitCode.TRY_AGAIN, ExitCode.KILLED, ExitCode.TERMINATED})
"""Exit codes of workers that were stopped, or whose peers were lost."""

PERMANENT = frozenset({ExitCode.INVALID_INPUT, ExitCode.GATE_NOT_MET})
"""Exit codes that no further attempt can cure."""

_CAUSES: Mapping[int, tuple[Cause, str]] = {
    ExitCode.INVALID_INPUT: (Cause.PERMANENT, "InvalidInput"),
    ExitCode.GATE_NOT_MET: (Cause.PERMANENT, "GateNotMet"),
    ExitCode.BUG: (Cause.APPLICATION, "ProgramError"),
    ExitCode.OUTPUT_UNWRITABLE: (Cause.APPLICATION, "OutputUnwritable"),
    ExitCode.INPUT_UNREADABLE: (Cause.APPLICATION, "InputUnreadable"),
    ExitCode.TRY_AGAIN: (Cause.UNKNOWN, "PeerLost"),
    ExitCode.KILLED: (Cause.UNKNOWN, "Killed"),
    ExitCode.TERMINATED: (Cause.UNKNOWN, "Terminated"),
}
_ORDER = ("OOMKilled", "ProgramError", "OutputUnwritable", "InputUnreadable")
"""Among failures of the program, the first is worst; any other comes after them."""
_CLASSES = tuple(Cause)


def past_grace(pod: Pod, now: datetime) -> bool:
    """Whether a pod should have ended long ago: its node is lost (rule C1)."""
    if pod.deletion_time is None or pod.terminal:
        return False
    return now >= lost_at(pod, pod.deletion_time)


def lost_at(pod: Pod, deletion_time: datetime) -> datetime:
    """When a pod that is being deleted is given up."""
    return deletion_time + timedelta(seconds=pod.grace_seconds) + LOST_AFTER


def severity(failure: Failure) -> tuple[int, int]:
    """Smaller is worse."""
    order = _ORDER.index(failure.reason) if failure.reason in _ORDER else len(_ORDER)
    return _CLASSES.index(failure.cause), order


def worst(failures: Iterable[Failure | None]) -> Failure | None:
    """The worst; among equals the earliest, then the lowest index, then the one given first."""
    known = [failure for failure in failures if failure is not None]
    return min(known, key=_root_first, default=None)


def _root_first(failure: Failure) -> tuple[tuple[int, int], str, int]:
    index = failure.index if failure.index is not None else 2**31
    return severity(failure), failure.finished_time, index


def evidence(
    pods: Iterable[Pod], job: ChildJob | None, *, attempt: int, paused: bool, now: datetime
) -> Failure | None:
    """The worst that the pods of an attempt show; None while nothing is wrong.

    While the Job is suspended (`paused`) its pods are deleted on purpose, so only pods that ended
    on their own count.
    """
    own = [pod for pod in pods if pod.attempt == attempt and not _without_fault(pod)]
    if paused:
        own = [pod for pod in own if pod.deletion_time is None]
    target = (
        job.failure.time if job is not None and job.failure is not None else _first_end(own, now)
    )
    found = worst(_judged(pod, target, now, same_second=False) for pod in own)
    alone = any(_ended_unasked(pod, now) for pod in own)
    if not alone and (found is None or found.cause is Cause.UNKNOWN):
        # Times have whole seconds: a pod deleted in the second in which the Job failed was either
        # the cause or a survivor. Where nothing ended on its own, be it with 75, it was the cause.
        found = worst([found, *(_judged(pod, target, now, same_second=True) for pod in own)])
    return found


def _first_end(pods: Iterable[Pod], now: datetime) -> datetime | None:
    """When the first pod ended on its own, which stands for the Job's failure until that is told.

    The Job controller deletes the survivors first, and writes the Job's condition afterwards.
    """
    ends = [pod.exit.time for pod in pods if pod.exit is not None and _ended_unasked(pod, now)]
    return min((end for end in ends if end is not None), default=None)


def _without_fault(pod: Pod) -> bool:
    return pod.phase == "Succeeded" or (pod.exit is not None and pod.exit.code == 0)


def _judged(
    pod: Pod, failure_target: datetime | None, now: datetime, *, same_second: bool
) -> Failure | None:
    """What one pod shows; how a survivor ends that is stopped after a failure is collateral."""
    if pod.exit is not None and pod.exit.code in PERMANENT:
        return _ended(pod, now)
    if pod.disruption is not None:
        reason = _word(pod.disruption.reason, "Disrupted")
        return _failure(pod, Cause.DISRUPTION, reason, pod.disruption.message, pod.disruption.time)
    asked = _asked_to_end(pod, now)
    if _ended_unasked(pod, now):
        return _ended(pod, now)
    if asked is None:
        return None
    survived = failure_target is not None and (
        asked > failure_target if same_second else asked >= failure_target
    )
    if not survived:
        return _deleted(pod, asked, now)
    return None if pod.exit is None else _stopped(pod, pod.exit.time or now)


def _asked_to_end(pod: Pod, now: datetime) -> datetime | None:
    """When the pod's deletion was asked for; a pod that vanished without a word was asked now."""
    if pod.asked is not None:
        return pod.asked
    return now if pod.gone and pod.phase != "Failed" else None


def _ended_unasked(pod: Pod, now: datetime) -> bool:
    asked = _asked_to_end(pod, now)
    return (pod.exit is not None or pod.phase == "Failed") and (
        asked is None or _ended_before(pod, asked)
    )


def _ended_before(pod: Pod, asked: datetime) -> bool:
    """Whether the worker ended before it was asked to; within a second its exit code tells.

    Nobody is killed without a reason: with these exit codes the deletion came first.
    """
    if pod.exit is None or pod.exit.time is None:
        return False
    killed = pod.exit.code in (ExitCode.KILLED, ExitCode.TERMINATED)
    if killed and pod.exit.reason != "OOMKilled":
        return False
    return pod.exit.time < asked or (pod.exit.time == asked and pod.exit.code not in COLLATERAL)


def _stopped(pod: Pod, time: datetime) -> Failure:
    message = "the worker was stopped because another had failed"
    return _failure(pod, Cause.UNKNOWN, "Terminated", message, time)


def _deleted(pod: Pod, asked: datetime, now: datetime) -> Failure:
    if past_grace(pod, now):
        message = f"the pod did not end in time after its deletion; is node {pod.node} lost?"
        return _failure(pod, Cause.DISRUPTION, "NodeLost", message, asked)
    return _failure(pod, Cause.DISRUPTION, "PodDeleted", "the pod was deleted", asked)


def _ended(pod: Pod, now: datetime) -> Failure:
    if pod.exit is None:  # the kubelet refused or evicted it before its container ran
        reason = _word(pod.pod_reason, "PodFailed")
        return _failure(pod, Cause.APPLICATION, reason, pod.pod_message, now)
    if pod.exit.reason == "OOMKilled":
        cause, reason = Cause.APPLICATION, "OOMKilled"
        message = _out_of_memory(parse_termination(pod.exit.message).memory_bytes)
    else:
        cause, reason = _CAUSES.get(pod.exit.code, (Cause.APPLICATION, "NonZeroExit"))
        message = parse_termination(pod.exit.message).cause
    return _failure(pod, cause, reason, message, pod.exit.time or now)


def _out_of_memory(planned: int | None) -> str:
    need = f"; the plan needs {shown_bytes(planned)} a pod" if planned else ""
    return f"the worker used more memory than its limit{need}"


def _failure(pod: Pod, cause: Cause, reason: str, message: str, time: datetime) -> Failure:
    return Failure(
        attempt=pod.attempt,
        cause=cause,
        reason=reason,
        index=pod.index,
        pod_name=pod.name,
        node_name=pod.node or None,
        exit_code=pod.exit.code if pod.exit is not None else None,
        message=message[:MOST_MESSAGE],
        finished_time=format_time(time),
    )


def told_by_job(failure: Happened) -> tuple[Cause, str]:
    """Cause and reason where no pod is left to tell; only the rules of its failure policy can."""
    if failure.reason == "PodFailurePolicy" and "DisruptionTarget" in failure.message:
        return Cause.DISRUPTION, "Disrupted"
    code = re.search(r"failed with exit code (\d+) matching", failure.message)
    if code is not None and int(code.group(1)) in PERMANENT:
        return _CAUSES[int(code.group(1))]
    return Cause.UNKNOWN, failure.reason or "JobFailed"


def _word(text: str, default: str) -> str:
    """A reason of another component, if it is one CamelCase word."""
    return text if re.fullmatch(r"[A-Z][A-Za-z0-9]{0,63}", text) else default


def told(failure: Failure) -> str:
    """A failure as one sentence: worker, node, exit code and its last words."""
    who = "" if failure.index is None else f"worker {failure.index}"
    where = f" ({failure.pod_name} on {failure.node_name})" if failure.node_name else ""
    if failure.pod_name and not failure.node_name:
        where = f" ({failure.pod_name})"
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    said = f": {failure.message}" if failure.message else ""
    return f"{who}{where} {failure.reason}{code}{said}".strip()[:MOST_MESSAGE]

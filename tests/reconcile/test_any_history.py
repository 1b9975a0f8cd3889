"""Whatever is observed in whatever order: what never happens in the life of a job."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quantfleet_api.status import ConditionType, JobStatus
from quantfleet_operator.conditions import holds, is_terminal
from quantfleet_operator.decision import CreateJob, Delete
from quantfleet_operator.evidence import lost_at
from quantfleet_operator.observed import ChildJob, Hold, JobView, Observed, Pod
from reconcile_builders import (
    at,
    child,
    decide,
    deleted,
    exited,
    happened,
    pod,
    settle,
    view,
)

CODES = [0, 1, 64, 65, 70, 73, 74, 75, 137, 143]
POLICIES: list[dict[str, Any]] = [
    {},
    {"suspend": True},
    {"backoffLimit": 0},
    {"activeDeadlineSeconds": 40},
    {"preRunningDeadlineSeconds": 20},
    {"ttlSecondsAfterFinished": 5},
]


@st.composite
def pods(draw: st.DrawFn, attempt: int, now: float) -> Pod:
    """A pod in any state."""
    index = draw(st.integers(0, 1))
    asked = now - draw(st.integers(0, 200))
    match draw(st.sampled_from(["runs", "waits", "exited", "evicted", "deleted", "gone"])):
        case "exited":
            one = exited(draw(st.sampled_from(CODES)), asked, index=index, attempt=attempt)
            return deleted(one, asked) if draw(st.booleans()) else one
        case "waits":
            hold = Hold(reason="ImagePullBackOff", message="no such image")
            return pod(index, attempt, phase="Pending", ready=False, hold=hold)
        case "evicted":
            return pod(index, attempt, disruption=happened("TerminationByKubelet", asked))
        case "deleted":
            return deleted(pod(index, attempt), asked)
        case "gone":
            return pod(index, attempt, gone=True)
        case _:
            return pod(index, attempt)


@st.composite
def jobs(draw: st.DrawFn, attempt: int, now: float) -> ChildJob:
    """The Job of an attempt in any state."""
    kind = draw(
        st.sampled_from(["", "", "", "FailureTarget", "Failed", "SuccessCriteriaMet", "Complete"])
    )
    conditions = {kind: happened("Because", now - draw(st.integers(0, 20)))} if kind else {}
    suspended, deleting = draw(st.booleans()) and draw(st.booleans()), False
    ready = draw(st.integers(0, 2))
    return child(
        attempt, ready=ready, conditions=conditions, suspended=suspended, deleting=deleting
    )


@st.composite
def surroundings(draw: st.DrawFn, attempt: int, now: float) -> Observed:
    """Any state of the children of a job that is at `attempt`."""
    attempts = st.sampled_from(sorted({max(1, attempt - 1), max(1, attempt)}))
    numbers = draw(st.lists(attempts, unique=True, max_size=2))
    refusal = Hold(reason="QuotaExceeded", message="exceeded quota")
    return Observed(
        jobs=tuple(draw(jobs(number, now)) for number in numbers),
        pods=tuple(draw(pods(draw(attempts), now)) for _ in range(draw(st.integers(0, 3)))),
        service_exists=draw(st.booleans()),
        refusal=draw(st.sampled_from([None, None, refusal])),
    )


def check_step(before: JobStatus, after: JobStatus) -> None:
    """What holds between two statuses that follow each other."""
    assert not (holds(after, ConditionType.COMPLETE) and holds(after, ConditionType.FAILED))
    assert after.attempt - before.attempt in (0, 1)
    assert after.restarts.application >= before.restarts.application
    assert after.restarts.disruption >= before.restarts.disruption
    counted = after.restarts.application + after.restarts.disruption
    assert counted <= max(0, after.attempt - 1)
    assert after.active_seconds >= before.active_seconds
    if is_terminal(before):
        assert after == before


def check_deeds(job: JobView, observed: Observed, now: float) -> None:
    """What holds for the deeds of a decision."""
    decision = decide(job, observed, now)
    status = decision.status or job.status
    created = [action for action in decision.actions if isinstance(action, CreateJob)]
    assert len(created) <= 1
    if created:
        assert not is_terminal(status)
        assert not holds(status, ConditionType.SUSPENDED)
        assert status.job_ref is None
        assert created[0].manifest["metadata"]["name"].endswith(f"-a{status.attempt}")
        blocking = [
            one
            for one in observed.pods
            if one.attempt < status.attempt
            and not one.terminal
            and (one.deletion_time is None or at(now) < lost_at(one, one.deletion_time))
        ]
        assert blocking == []
    if is_terminal(job.status):
        assert all(isinstance(action, Delete) for action in decision.actions)
    # what is decided again after the status was written must not be written again and again
    settle(job, observed, now)


@settings(max_examples=300)
@given(st.data())
def test_no_history_breaks_the_promises(data: st.DataObject) -> None:
    job = view(policy=data.draw(st.sampled_from(POLICIES)))
    now = 0.0
    for _ in range(data.draw(st.integers(1, 8))):
        now += data.draw(st.integers(0, 60))
        observed = data.draw(surroundings(job.status.attempt, now))
        if data.draw(st.booleans()):
            policy = data.draw(st.sampled_from(POLICIES))
            job = replace(job, spec=view(policy=policy).spec)
        check_deeds(job, observed, now)
        decision = decide(job, observed, now)
        if decision.status is not None:
            check_step(job.status, decision.status)
            job = replace(job, status=decision.status, has_status=True)

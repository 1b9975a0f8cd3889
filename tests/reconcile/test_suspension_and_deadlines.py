"""Suspension (C9), deadlines and what holds workers back (C15), time to live (L10)."""

from dataclasses import replace
from typing import Any

import pytest

from quantfleet_api.status import ConditionType, JobStatus, Phase
from quantfleet_operator.decision import CreateJob, Delete, SuspendJob
from quantfleet_operator.observed import ChildJob, Claim, Hold, JobView, Observed
from reconcile_builders import (
    at,
    child,
    condition,
    decide,
    deleted,
    exited,
    failed_child,
    gang,
    happened,
    pod,
    running,
    settle,
    truth,
    view,
)

SUSPEND = {"suspend": True, "activeDeadlineSeconds": 100, "preRunningDeadlineSeconds": 50}
RUN = SUSPEND | {"suspend": False}


def stopped_child() -> ChildJob:
    """The Job of attempt 1, suspended by the operator."""
    return child(suspended=True, suspended_by_us=True, active=0)


def suspended(seconds: float = 60) -> JobView:
    """A job that ran for a minute and is suspended, its pods gone."""
    job = replace(running(policy=RUN), spec=view(policy=SUSPEND).spec)
    return settle(job, Observed(jobs=(stopped_child(),)), seconds)[0]


def resume(job: JobView) -> JobView:
    return replace(job, spec=view(policy=RUN).spec)


def test_c9_suspending_a_job_suspends_its_job_and_stops_the_clocks() -> None:
    job = replace(running(policy=RUN), spec=view(policy=SUSPEND).spec)
    decision = decide(job, gang(), 60)
    status = decision.status
    assert status is not None
    assert truth(status, ConditionType.SUSPENDED) == ("True", "SuspendedByUser")
    assert (status.phase, status.active_since, status.active_seconds) == (
        Phase.SUSPENDED,
        None,
        60,
    )
    assert decision.actions == (SuspendJob(name="tiny-0123a-a1", uid="job-1", suspend=True),)
    assert [event.reason for event in decision.events] == ["Suspended"]


def test_c9_a_suspended_job_never_fails_by_time() -> None:
    stopped = Observed(jobs=(stopped_child(),))
    decision = decide(suspended(), stopped, 1_000_000)
    assert (decision.status, decision.actions, decision.requeue_after) == (None, (), None)


def test_c9_pods_that_the_suspension_stops_are_no_failure() -> None:
    job = replace(running(policy=RUN), spec=view(policy=SUSPEND).spec)
    pods = (deleted(exited(143, 61), 60), deleted(pod(1), 60))
    after = settle(job, gang(*pods, job=stopped_child()), 62)[0].status
    assert (after.attempt, after.last_failure) == (1, None)


def test_c9_the_job_is_resumed_once_its_old_pods_are_gone() -> None:
    job = resume(suspended())
    leaving = gang(deleted(pod(0), 60), job=stopped_child())
    job, decision = settle(job, leaving, 70)
    assert truth(job.status, ConditionType.SUSPENDED) == ("True", "Resuming")
    assert decision.actions == ()
    decision = decide(job, Observed(jobs=(stopped_child(),), service_exists=True), 80)
    assert decision.actions == (SuspendJob(name="tiny-0123a-a1", uid="job-1", suspend=False),)


def test_c9_clocks_go_on_when_the_job_is_resumed() -> None:
    job = resume(suspended())
    decision = decide(job, Observed(jobs=(child(),), service_exists=True), 1000)
    status = decision.status
    assert status is not None
    assert truth(status, ConditionType.SUSPENDED) == ("False", "Resumed")
    assert (status.active_seconds, status.active_since) == (60, "2026-01-01T12:16:40Z")
    assert status.waiting_since == "2026-01-01T12:16:40Z"
    assert status.attempt == 1
    assert "Resumed" in [event.reason for event in decision.events]


def test_c9_a_pod_that_a_lost_node_keeps_is_left_behind_by_a_new_attempt() -> None:
    job = resume(suspended())
    stuck = Observed(jobs=(stopped_child(),), pods=(deleted(pod(0), 60, grace=30),))
    status = decide(job, stuck, 60 + 30 + 30 + 60).status
    assert status is not None
    assert status.attempt == 2
    assert status.restarts.model_dump() == {"application": 0, "disruption": 0}


def test_a_job_that_is_born_suspended_has_no_child() -> None:
    job, decision = settle(view(policy=SUSPEND), Observed(), 0)
    assert (job.status.attempt, decision.actions) == (0, ())
    assert job.status.phase is Phase.SUSPENDED
    started = decide(resume(job), Observed(), 500)
    assert isinstance(started.actions[-1], CreateJob)
    assert started.status is not None
    assert started.status.start_time == "2026-01-01T12:08:20Z"


def test_t12_a_job_that_somebody_else_suspended_is_left_to_them() -> None:
    job = running(policy=RUN)
    observed = Observed(jobs=(child(suspended=True, active=0),), service_exists=True)
    job, _ = settle(job, observed, 60)
    assert truth(job.status, ConditionType.SUSPENDED) == ("True", "SuspendedByOthers")
    for seconds in (61, 600, 6_000):
        again = decide(job, observed, seconds)
        assert (again.status, again.actions) == (None, ())
    resumed = decide(job, gang(job=child()), 7_000).status
    assert truth(resumed, ConditionType.SUSPENDED) == ("False", "Resumed")


def test_a_failure_while_suspended_counts_but_starts_nothing() -> None:
    job = replace(running(policy=RUN), spec=view(policy=SUSPEND).spec)
    decision = decide(job, gang(exited(1, 59), job=failed_child(seconds=59)), 60)
    assert decision.status is not None
    assert decision.status.attempt == 2
    assert decision.status.restarts.application == 1
    assert [type(action) for action in decision.actions] == [Delete]
    assert decision.status.active_since is None


def test_the_active_deadline_spans_attempts() -> None:
    job = running(policy={"activeDeadlineSeconds": 100})
    status = decide(job, gang(exited(1, 59), job=failed_child(seconds=59)), 60).status
    late = view(status, policy={"activeDeadlineSeconds": 100})
    assert truth(decide(late, Observed(), 99).status, ConditionType.FAILED)[0] == "False"
    decision = decide(late, Observed(), 100)
    assert truth(decision.status, ConditionType.FAILED) == ("True", "DeadlineExceeded")
    assert decision.status is not None
    assert decision.status.active_seconds == 100


def test_the_next_look_is_no_later_than_the_deadline() -> None:
    job = running(policy={"activeDeadlineSeconds": 100})
    assert decide(job, gang(), 40).requeue_after == 60


def test_success_outweighs_a_deadline_that_has_passed() -> None:
    job = running(policy={"activeDeadlineSeconds": 100})
    done = child(conditions={"Complete": happened("SuccessPolicy", 99)}, completion_time=at(99))
    decision = decide(job, gang(exited(0, 99), job=done), 500)
    assert truth(decision.status, ConditionType.COMPLETE)[0] == "True"


HOLDS: list[tuple[str, dict[str, Any], str]] = [
    ("ImagePullBackOff", {}, "ImagePullFailed"),
    ("ErrImagePull", {}, "ImagePullFailed"),
    ("CreateContainerConfigError", {}, "ContainerNotCreated"),
    ("Unschedulable", {}, "Unschedulable"),
    ("SchedulingGated", {}, "WorkerHeld"),
]


@pytest.mark.parametrize(("held_by", "more", "reason"), HOLDS, ids=[hold[0] for hold in HOLDS])
def test_t03_what_holds_a_pod_back_is_said(held_by: str, more: Any, reason: str) -> None:
    hold = Hold(reason=held_by, message="the words of the kubelet")
    waiting = pod(1, phase="Pending", ready=False, hold=hold, **more)
    job, _ = settle(view(), Observed(), 0)
    status = settle(job, gang(pod(0), waiting, job=child(ready=1)), 3)[0].status
    assert truth(status, ConditionType.WORKERS_READY) == ("False", reason)
    said = condition(status, ConditionType.WORKERS_READY).message
    assert "worker 1" in said
    assert "the words of the kubelet" in said


def held(**more: Any) -> JobStatus:
    job, _ = settle(view(), Observed(), 0)
    waiting = pod(0, phase="Pending", ready=False, **more.pop("pod", {}))
    return settle(job, gang(waiting, job=child(), **more), 10)[0].status


def test_a_claim_that_does_not_exist_is_named() -> None:
    status = held(claims=(Claim(name="out", exists=False),))
    assert truth(status, ConditionType.WORKERS_READY) == ("False", "ClaimNotFound")


def test_a_claim_for_one_node_under_workers_on_two_is_named() -> None:
    job, _ = settle(view(), Observed(), 0)
    pods = (pod(0, ready=False, phase="Pending"), pod(1, ready=False, phase="Pending"))
    claim = Claim(name="out", exists=True, phase="Bound", access_modes=("ReadWriteOnce",))
    status = settle(job, gang(*pods, job=child(), claims=(claim,)), 10)[0].status
    assert truth(status, ConditionType.WORKERS_READY) == ("False", "ClaimNotShared")
    assert "node-0, node-1" in condition(status, ConditionType.WORKERS_READY).message


@pytest.mark.parametrize(
    ("event", "message", "reason"),
    [
        ("FailedCreate", "pods x is forbidden: exceeded quota: q", "QuotaExceeded"),
        ("FailedCreate", "denied by a webhook", "CreationRefused"),
        ("FailedMount", "timed out waiting for the condition", "VolumeNotMounted"),
    ],
)
def test_warning_events_say_what_pods_do_not(event: str, message: str, reason: str) -> None:
    status = held(warnings=(Hold(reason=event, message=message),))
    assert truth(status, ConditionType.WORKERS_READY) == ("False", reason)


def test_t03_after_the_deadline_the_job_fails_with_the_reason_that_held_it() -> None:
    policy = {"preRunningDeadlineSeconds": 30}
    job, _ = settle(view(policy=policy), Observed(), 0)
    hold = Hold(reason="ImagePullBackOff", message="manifest unknown")
    observed = gang(pod(0, phase="Pending", ready=False, hold=hold), job=child())
    job, _ = settle(job, observed, 29)
    decision = decide(job, observed, 30)
    assert truth(decision.status, ConditionType.FAILED) == ("True", "WorkersNotReady")
    message = condition(decision.status, ConditionType.FAILED).message
    assert "ImagePullFailed" in message
    assert "manifest unknown" in message


def test_workers_that_were_ready_once_are_under_no_such_deadline() -> None:
    job = running(policy={"preRunningDeadlineSeconds": 30})
    decision = decide(job, gang(job=child(ready=1)), 5_000)
    assert truth(decision.status, ConditionType.FAILED)[0] == "False"


def test_l10_a_finished_job_is_at_rest_whatever_happens_to_its_children() -> None:
    job = view(decide(running(policy={"backoffLimit": 0}), _gone_wrong(), 101).status)
    for observed in (
        Observed(),
        gang(job=failed_child()),
        gang(exited(0, 500), job=failed_child()),
    ):
        decision = decide(job, observed, 10_000)
        assert (decision.status, decision.actions, decision.events) == (None, (), ())


def _gone_wrong() -> Observed:
    return gang(exited(1, 99), job=failed_child())


def test_l10_only_the_generation_of_a_finished_job_changes() -> None:
    final = decide(running(policy={"backoffLimit": 0}), _gone_wrong(), 101).status
    assert final is not None
    decision = decide(view(final, generation=5), Observed(), 200)
    assert decision.status == final.model_copy(update={"observed_generation": 5})


def test_a_job_that_failed_by_time_leaves_no_child_and_its_service_goes_last() -> None:
    final = decide(running(policy={"activeDeadlineSeconds": 50}), gang(), 50).status
    actions = decide(view(final), gang(), 51).actions
    kinds = [action.kind for action in actions if isinstance(action, Delete)]
    assert kinds == ["Job", "NetworkPolicy", "ConfigMap", "ServiceAccount", "Service"]
    assert decide(view(final), Observed(), 52).actions == ()


@pytest.mark.parametrize("ttl", [0, 60])
def test_children_go_when_their_time_to_live_is_over(ttl: int) -> None:
    policy = {"ttlSecondsAfterFinished": ttl, "backoffLimit": 0}
    final = decide(running(policy=policy), _gone_wrong(), 101).status
    job = view(final, policy=policy)
    over = 100 + ttl  # the Job failed at 100 s
    if ttl:
        early = decide(job, _gone_wrong(), over - 1)
        assert (early.actions, early.requeue_after) == ((), 1)
    kinds = [a.kind for a in decide(job, _gone_wrong(), over).actions if isinstance(a, Delete)]
    assert kinds[0] == "Job"
    assert kinds[-1] == "Service"
    assert decide(job, Observed(), over).actions == ()


def test_without_a_time_to_live_children_stay() -> None:
    final = decide(running(policy={"backoffLimit": 0}), _gone_wrong(), 101).status
    decision = decide(view(final), _gone_wrong(), 10_000_000)
    assert (decision.actions, decision.requeue_after) == ((), None)

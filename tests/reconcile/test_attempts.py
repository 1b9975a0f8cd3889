"""Attempts: counted by cause, intent before deeds, old pods before new ones (C1, C3, C6, C7)."""

from dataclasses import replace
from typing import Any

import pytest

from quantfleet_api.status import Cause, ConditionType, JobStatus, Phase, Restarts
from quantfleet_operator.decision import CreateJob, Decision, Delete
from quantfleet_operator.observed import Observed
from reconcile_builders import (
    SETTINGS,
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

EVICTED = happened("EvictionByEvictionAPI", 99)


def creations(decision: Decision) -> list[str]:
    return [a.manifest["metadata"]["name"] for a in decision.actions if isinstance(a, CreateJob)]


def after_failure(code: int = 1, **policy: Any) -> Decision:
    pods = (exited(code, 99, index=1), pod(0))
    return decide(running(policy=policy), gang(*pods, job=failed_child()), 101)


def restarts(status: JobStatus | None) -> tuple[int, int]:
    assert status is not None
    return status.restarts.application, status.restarts.disruption


def test_a_failure_of_the_program_counts_and_the_next_attempt_is_intended_first() -> None:
    decision = after_failure()
    status = decision.status
    assert status is not None
    assert (status.attempt, status.job_ref, restarts(status)) == (2, None, (1, 0))
    assert decision.restarted is Cause.APPLICATION
    assert status.phase is Phase.RESTARTING
    assert [event.reason for event in decision.events] == ["GangRestarting"]


def test_c1_the_old_job_goes_and_the_new_one_waits_for_its_pods() -> None:
    decision = after_failure()
    assert decision.actions == (
        Delete(api_version="batch/v1", kind="Job", name="tiny-0123a-a1", uid="job-1"),
    )


def test_c1_the_new_job_comes_once_every_old_pod_has_ended() -> None:
    status = after_failure().status
    pods = (exited(1, 99, index=1), deleted(pod(0), 101))
    job, waiting = settle(view(status), Observed(pods=pods, service_exists=True), 105)
    assert creations(waiting) == []
    assert truth(job.status, ConditionType.WORKERS_READY)[1] == "OldWorkersEnding"
    ended = (exited(1, 99, index=1), deleted(exited(143, 106, index=0), 101))
    _, ready = settle(job, Observed(pods=ended, service_exists=True), 107)
    assert creations(ready) == ["tiny-0123a-a2"]


def test_c1_an_old_pod_on_a_lost_node_is_waited_for_a_minute_and_no_longer() -> None:
    status = after_failure().status
    old = Observed(pods=(deleted(pod(0), 101, grace=30),), service_exists=True)
    last = 101 + 30 + 30 + 60
    assert creations(settle(view(status), old, last - 1)[1]) == []
    assert creations(settle(view(status), old, last)[1]) == ["tiny-0123a-a2"]


def test_c1_a_pod_past_its_grace_ends_the_attempt_though_the_job_says_nothing() -> None:
    lost = deleted(pod(1, disruption=happened("DeletionByTaintManager", 40)), 40, grace=30)
    observed = gang(pod(0), lost)
    job, early = settle(running(), observed, 159)
    assert job.status.attempt == 1
    assert early.requeue_after == 1
    decision = decide(job, observed, 160)
    assert decision.status is not None
    assert (decision.status.attempt, restarts(decision.status)) == (2, (0, 1))


def test_c3_evidence_is_remembered_as_soon_as_it_is_seen() -> None:
    """The operator may die, and the pod be gone, before the Job says that it failed."""
    dying = deleted(pod(1, disruption=EVICTED), 99)
    decision = decide(running(), gang(pod(0), dying), 100)
    assert decision.status is not None
    assert decision.status.attempt == 1
    assert decision.status.last_failure is not None
    assert decision.status.last_failure.cause is Cause.DISRUPTION
    assert [event.reason for event in decision.events] == ["DisruptionDetected"]
    after_restart = decide(
        view(decision.status, policy={"backoffLimit": 0}),
        gang(exited(75, 101, index=0), job=failed_child(seconds=101)),
        110,
    )
    assert restarts(after_restart.status) == (0, 1)


def test_c3_a_failure_that_nothing_explains_counts_against_the_limit() -> None:
    job = running(policy={"backoffLimit": 0})
    decision = decide(job, Observed(jobs=(failed_child(),), service_exists=True), 101)
    assert truth(decision.status, ConditionType.FAILED) == ("True", "BackoffLimitExceeded")
    assert decision.status is not None
    assert decision.status.last_failure is not None
    assert decision.status.last_failure.cause is Cause.UNKNOWN


@pytest.mark.parametrize(("code", "reason"), [(64, "InvalidInput"), (65, "GateNotMet")])
def test_a_permanent_error_is_never_tried_again(code: int, reason: str) -> None:
    decision = after_failure(code, backoffLimit=3)
    assert truth(decision.status, ConditionType.FAILED) == ("True", reason)
    assert decision.actions == ()


def test_a_permanent_error_outweighs_an_eviction() -> None:
    pods = (exited(64, 99, index=1), pod(0, disruption=EVICTED))
    decision = decide(running(), gang(*pods, job=failed_child()), 101)
    assert truth(decision.status, ConditionType.FAILED) == ("True", "InvalidInput")


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_limit_is_how_often_the_program_may_fail(limit: int) -> None:
    status = running().status.model_copy(update={"restarts": Restarts(application=limit)})
    job = view(status, policy={"backoffLimit": limit})
    decision = decide(job, gang(exited(1, 99), job=failed_child()), 101)
    assert truth(decision.status, ConditionType.FAILED) == ("True", "BackoffLimitExceeded")
    more = view(status, policy={"backoffLimit": limit + 1})
    decision = decide(more, gang(exited(1, 99), job=failed_child()), 101)
    assert restarts(decision.status) == (limit + 1, 0)


def test_t02_disruptions_are_not_limited_by_the_backoff_limit() -> None:
    status = running().status.model_copy(update={"restarts": Restarts(disruption=50)})
    job = view(status, policy={"backoffLimit": 0})
    decision = decide(job, gang(pod(0, disruption=EVICTED), job=failed_child()), 101)
    assert restarts(decision.status) == (0, 51)


def test_restarts_for_the_same_cause_are_spaced_out_unless_the_attempt_lived_long() -> None:
    status = running().status.model_copy(update={"restarts": Restarts(application=3)})
    job = view(status, policy={"backoffLimit": 9})
    quick = decide(job, gang(exited(1, 99), job=failed_child()), 101).status
    assert quick is not None
    assert quick.not_before == "2026-01-01T12:02:01Z"  # 101 s + 5 s x 4
    assert creations(settle(view(quick), Observed(), 120)[1]) == []
    assert creations(settle(view(quick), Observed(), 121)[1]) == ["tiny-0123a-a2"]
    steady = decide(job, gang(exited(1, 699), job=failed_child(seconds=700)), 701).status
    assert steady is not None
    assert steady.not_before is None


def test_attempts_end_with_the_last_name_that_fits() -> None:
    status = running().status.model_copy(update={"attempt": 999})
    pods = (pod(0, 999, disruption=EVICTED),)
    decision = decide(view(status), gang(*pods, job=failed_child(999)), 101)
    assert truth(decision.status, ConditionType.FAILED) == ("True", "AttemptsExhausted")


def test_c6_a_job_that_was_seen_and_is_gone_means_that_its_attempt_is_lost() -> None:
    decision = decide(running(), Observed(service_exists=True), 50)
    assert decision.status is not None
    assert (decision.status.attempt, restarts(decision.status)) == (2, (0, 1))
    assert creations(decision) == ["tiny-0123a-a2"]


def test_c6_a_job_that_was_intended_and_never_seen_is_created_under_its_name() -> None:
    """T04: the operator died between writing intent and creating the Job."""
    job, decision = settle(view(), Observed(), 0)
    assert (job.status.attempt, creations(decision)) == (1, ["tiny-0123a-a1"])


def test_c6_a_job_that_was_created_and_not_recorded_is_taken_as_it_is() -> None:
    """T04: the operator died between creating the Job and writing its UID."""
    job, _ = settle(view(), Observed(), 0)
    decision = decide(job, Observed(jobs=(child(),), service_exists=True), 60)
    assert decision.status is not None
    assert decision.status.job_ref is not None
    assert creations(decision) == []


@pytest.mark.parametrize("code", [1, 64])
def test_c7_a_namespace_that_goes_ends_all_reconciling(code: int) -> None:
    observed = gang(exited(code, 99), job=failed_child(), namespace_ending=True)
    assert decide(running(), observed, 101) == Decision()


def test_c7_before_a_failure_is_counted_the_api_server_is_asked() -> None:
    assert after_failure().probe is not None
    assert decide(view()).probe is not None
    assert decide(running(), Observed(), 50).probe is not None
    evicted = gang(pod(0, disruption=EVICTED))
    assert decide(running(), evicted, 50).probe is not None


def test_c7_a_job_that_is_being_deleted_is_left_alone() -> None:
    job = replace(running(), deleting=True)
    assert decide(job, gang(exited(1, 99), job=failed_child()), 101) == Decision()


def test_a_name_that_another_object_holds_is_said_and_tried_again() -> None:
    from quantfleet_operator.observed import Hold

    job, _ = settle(view(), Observed(), 0)
    conflict = Hold(reason="NameConflict", message="jobs tiny-0123a-a1 already exists")
    job, decision = settle(job, Observed(refusal=conflict), 1)
    assert truth(job.status, ConditionType.WORKERS_READY) == ("False", "NameConflict")
    assert creations(decision) == ["tiny-0123a-a1"]
    assert decision.requeue_after is not None
    assert decision.requeue_after <= 10


def test_c1_jobs_of_earlier_attempts_are_deleted_whenever_they_are_seen() -> None:
    status = running().status.model_copy(update={"attempt": 3})
    observed = Observed(jobs=(child(1), child(2), child(3, ready=2)), service_exists=True)
    actions = decide(view(status), observed, 20).actions
    assert [action.uid for action in actions if isinstance(action, Delete)] == ["job-1", "job-2"]


def test_a_job_that_is_seen_older_than_its_children_is_left_until_it_is_seen_anew() -> None:
    """Behind a slow watch, beside another operator that went on: nothing of its work is undone."""
    observed = Observed(jobs=(child(2),), pods=(exited(1, 10),), service_exists=True)
    assert decide(running(), observed, 20) == Decision(requeue_after=1)


def test_the_failed_condition_quotes_the_root_cause() -> None:
    pods = (
        exited(75, 90, index=0),
        exited(73, 98, index=1, message='{"cause": "no space left"}'),
    )
    job = running(policy={"backoffLimit": 0})
    status = decide(job, gang(*pods, job=failed_child()), 101).status
    message = condition(status, ConditionType.FAILED).message
    for part in ("worker 1", "node-1", "73", "no space left"):
        assert part in message
    assert status is not None
    assert status.workers.failed_indexes == "0-1"
    assert status.completion_time == at(100).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_all_attempts_run_the_image_of_the_first_whatever_the_operators_default_becomes() -> None:
    """The work of one version of the engine cannot be gone on with by another."""
    upgraded = replace(SETTINGS, worker_image="registry.invalid/worker:2")
    decision = decide(running(), Observed(), 50, settings=upgraded)
    (create,) = [action for action in decision.actions if isinstance(action, CreateJob)]
    (container,) = create.manifest["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.invalid/worker:1"

"""The main path: applied, accepted, children, workers ready, published, complete (C4, C6, C8)."""

import json

import pytest

from quantfleet_api.status import ConditionType, Phase
from quantfleet_operator.decision import CreateJob, Ensure
from quantfleet_operator.observed import Observed
from reconcile_builders import (
    DIGEST,
    SETTINGS,
    UID,
    at,
    child,
    condition,
    decide,
    exited,
    gang,
    happened,
    pod,
    running,
    settle,
    truth,
    view,
)

SAID = json.dumps({"manifestDigest": DIGEST, "sizeBytes": 5, "fileCount": 2, "warnings": 1})


def test_a_new_job_is_accepted_and_its_first_attempt_begins() -> None:
    decision = decide(view())
    status = decision.status
    assert status is not None
    assert truth(status, ConditionType.ACCEPTED) == ("True", "Valid")
    assert (status.attempt, status.phase, status.job_ref) == (1, Phase.PENDING, None)
    assert status.start_time == status.attempt_start_time == "2026-01-01T12:00:00Z"


def test_the_service_is_the_first_child_and_the_job_the_last() -> None:
    kinds = []
    for action in decide(view()).actions:
        assert isinstance(action, Ensure | CreateJob)
        kinds.append(action.manifest["kind"])
    assert kinds == ["Service", "ServiceAccount", "ConfigMap", "NetworkPolicy", "Job"]


def test_c6_the_first_attempt_is_written_before_its_job_is_created() -> None:
    """An action without the status beside it would be a deed without intent."""
    decision = decide(view())
    assert decision.status is not None
    again, rest = settle(view(decision.status), Observed(), 0)
    assert again.status.attempt == 1
    assert isinstance(rest.actions[-1], CreateJob)


def test_c6_the_jobs_uid_is_written_once_it_exists() -> None:
    job, _ = settle(view(), Observed(), 0)
    decision = decide(job, Observed(jobs=(child(),), service_exists=True), 1)
    assert decision.status is not None
    assert decision.status.job_ref is not None
    assert decision.status.job_ref.uid == "job-1"
    assert [event.reason for event in decision.events] == ["JobCreated"]
    assert decision.actions == ()


def test_workers_that_are_ready_are_said_once() -> None:
    job, _ = settle(view(), Observed(), 0)
    job, _ = settle(job, gang(job=child()), 1)
    assert job.status.phase is Phase.STARTING
    decision = decide(job, gang(), 5)
    assert [event.reason for event in decision.events] == ["WorkersReady"]
    assert decision.status is not None
    assert decision.status.phase is Phase.CALIBRATING
    assert decision.status.waiting_since is None
    assert decide(view(decision.status), gang(), 6).status is None


def test_t16_a_gang_that_runs_causes_no_write_and_no_deed() -> None:
    decision = decide(running(), gang(), 1000)
    assert (decision.status, decision.actions, decision.events) == (None, (), ())
    assert decision.requeue_after is None


@pytest.mark.parametrize("kind", ["SuccessCriteriaMet", "Complete"])
def test_c4_a_job_is_complete_at_success_criteria_met(kind: str) -> None:
    done = child(ready=1, succeeded=1, conditions={kind: happened("SuccessPolicy", 60)})
    decision = decide(running(), gang(exited(0, 60, message=SAID), pod(1), job=done), 61)
    status = decision.status
    assert status is not None
    assert truth(status, ConditionType.COMPLETE) == ("True", "Published")
    assert truth(status, ConditionType.FAILED)[0] == "False"
    assert truth(status, ConditionType.OUTPUT_VERIFIED) == ("True", "Verified")
    assert status.phase is Phase.SUCCEEDED
    assert [event.reason for event in decision.events] == ["Succeeded"]


def test_c4_a_peer_that_fails_in_the_same_second_does_not_undo_success() -> None:
    failed = child(failed=1, conditions={"FailureTarget": happened("BackoffLimitExceeded", 60)})
    pods = (exited(0, 60, message=SAID), exited(1, 60, index=1))
    decision = decide(running(), gang(*pods, job=failed), 61)
    assert truth(decision.status, ConditionType.COMPLETE)[0] == "True"


def test_c8_the_digest_comes_from_rank_0s_last_words() -> None:
    done = child(succeeded=1, conditions={"SuccessCriteriaMet": happened("SuccessPolicy", 60)})
    status = decide(running(), gang(exited(0, 60, message=SAID), job=done), 61).status
    assert status is not None
    assert status.output is not None
    assert status.output.model_dump() == {
        "path": "out/tiny",
        "digest": DIGEST,
        "size_bytes": 5,
        "file_count": 2,
        "warnings": 1,
    }


@pytest.mark.parametrize("words", ["", "a traceback", "[]", '{"manifestDigest": 3}'])
def test_c8_success_without_a_digest_is_complete_with_an_unverified_output(words: str) -> None:
    done = child(succeeded=1, conditions={"SuccessCriteriaMet": happened("SuccessPolicy", 60)})
    status = decide(running(), gang(exited(0, 60, message=words), job=done), 61).status
    assert truth(status, ConditionType.COMPLETE)[0] == "True"
    assert truth(status, ConditionType.OUTPUT_VERIFIED) == ("Unknown", "NoDigest")


def test_c8_rank_0s_pod_may_lag_behind_its_job_for_a_while() -> None:
    done = child(succeeded=1, conditions={"SuccessCriteriaMet": happened("SuccessPolicy", 60)})
    early = decide(running(), gang(job=done), 61)
    assert (early.status, early.requeue_after) == (None, 1)
    late = decide(running(), gang(job=done), 71)
    assert truth(late.status, ConditionType.OUTPUT_VERIFIED)[0] == "Unknown"


def test_t05_completion_is_when_the_job_completed_not_when_it_was_seen() -> None:
    done = child(
        succeeded=1,
        conditions={"Complete": happened("SuccessPolicy", 60)},
        completion_time=at(60),
    )
    status = decide(running(), gang(exited(0, 59, message=SAID), job=done), 5000).status
    assert status is not None
    assert status.completion_time == "2026-01-01T12:01:00Z"
    assert status.active_seconds == 60


def test_a_deleted_service_is_made_again_while_the_gang_runs() -> None:
    observed = Observed(jobs=(child(ready=2),), pods=(pod(0), pod(1)), service_exists=False)
    actions = decide(running(), observed, 20).actions
    assert isinstance(actions[0], Ensure)
    assert actions[0].manifest["kind"] == "Service"


def test_a_transition_time_changes_with_the_status_only() -> None:
    job = running(seconds=10)
    before = condition(job.status, ConditionType.SUSPENDED).last_transition_time
    decision = decide(job, gang(job=child(ready=1)), 500)
    lost = condition(decision.status, ConditionType.WORKERS_READY)
    assert (lost.reason, lost.last_transition_time) == ("WorkersLost", "2026-01-01T12:08:20Z")
    assert condition(decision.status, ConditionType.SUSPENDED).last_transition_time == before


def test_conditions_speak_of_the_generation_that_was_looked_at() -> None:
    job = running()
    newer = view(job.status, generation=7, policy={"backoffLimit": 9})
    status = decide(newer, gang(), 20).status
    assert status is not None
    assert status.observed_generation == 7
    assert {item.observed_generation for item in status.conditions} == {7}


def test_every_child_is_owned_by_this_very_job() -> None:
    for action in decide(view()).actions:
        assert isinstance(action, Ensure | CreateJob)
        (owner,) = action.manifest["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (UID, True)
        assert "finalizers" not in action.manifest["metadata"]


def test_without_any_image_a_job_can_never_work() -> None:
    from dataclasses import replace

    decision = decide(view(), settings=replace(SETTINGS, worker_image=""))
    assert truth(decision.status, ConditionType.ACCEPTED) == ("False", "InvalidSpec")
    assert "spec.workers.image" in condition(decision.status, ConditionType.FAILED).message
    assert decision.actions == ()

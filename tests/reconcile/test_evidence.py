"""What ended an attempt (rule C3): the worst evidence, the pod at the root, the collateral."""

from dataclasses import replace

import pytest

from quantfleet_api.status import Cause, Failure
from quantfleet_api.termination import Termination, termination_text
from quantfleet_operator.evidence import evidence, told
from quantfleet_operator.observed import ChildJob, Pod
from reconcile_builders import (
    at,
    child,
    deleted,
    exited,
    failed_child,
    happened,
    pod,
)

DRAINED = happened("EvictionByEvictionAPI", 90, "drained")


def seen(
    *pods: Pod, job: ChildJob | None = None, now: float = 120, paused: bool = False
) -> Failure:
    found = evidence(pods, job or failed_child(), attempt=1, paused=paused, now=at(now))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "reason", "cause", "named"),
    [
        (64, "Error", Cause.PERMANENT, "InvalidInput"),
        (65, "Error", Cause.PERMANENT, "GateNotMet"),
        (70, "Error", Cause.APPLICATION, "ProgramError"),
        (73, "Error", Cause.APPLICATION, "OutputUnwritable"),
        (74, "Error", Cause.APPLICATION, "InputUnreadable"),
        (1, "Error", Cause.APPLICATION, "NonZeroExit"),
        (137, "OOMKilled", Cause.APPLICATION, "OOMKilled"),
        (75, "Error", Cause.UNKNOWN, "PeerLost"),
        (137, "Error", Cause.UNKNOWN, "Killed"),
        (143, "Error", Cause.UNKNOWN, "Terminated"),
    ],
)
def test_an_exit_has_its_cause(code: int, reason: str, cause: Cause, named: str) -> None:
    found = seen(exited(code, 99, reason=reason))
    assert (found.cause, found.reason, found.exit_code) == (cause, named, code)


def test_a_worker_killed_for_memory_names_what_the_plan_needs() -> None:
    words = termination_text(Termination(memory_bytes=3 << 30))
    killed = exited(137, 99, reason="OOMKilled", message=words)
    assert "more memory than its limit; the plan needs 3.0 GiB a pod" in told(seen(killed))
    silent = exited(137, 99, reason="OOMKilled")
    assert told(seen(silent)).endswith("more memory than its limit")


ORDER = [
    exited(64, 119, index=0),
    pod(1, disruption=DRAINED),
    exited(137, 118, index=2, reason="OOMKilled"),
    exited(70, 117, index=3),
    exited(73, 116, index=4),
    exited(74, 115, index=5),
    exited(1, 114, index=6),
    exited(75, 90, index=7),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_worst_evidence_wins_however_late_it_came(first: int) -> None:
    assert seen(*reversed(ORDER[first:])).index == first


def test_among_equals_the_one_that_ended_first_is_the_root() -> None:
    assert seen(exited(1, 99, index=0), exited(2, 97, index=1), exited(3, 98, index=2)).index == 1


def test_an_evicted_pod_outweighs_the_peer_that_left_first() -> None:
    found = seen(exited(75, 95, index=0), exited(143, 96, index=1, disruption=DRAINED))
    assert (found.cause, found.reason, found.index) == (
        Cause.DISRUPTION,
        "EvictionByEvictionAPI",
        1,
    )


def test_a_deletion_before_the_job_failed_is_a_disruption() -> None:
    found = seen(deleted(exited(143, 99, index=1), 90), exited(75, 98, index=0))
    assert (found.cause, found.reason, found.index) == (Cause.DISRUPTION, "PodDeleted", 1)


def test_a_survivor_that_is_stopped_after_the_job_failed_is_no_cause() -> None:
    found = seen(exited(1, 99, index=0), deleted(exited(143, 102, index=1), 100))
    assert (found.cause, found.index) == (Cause.APPLICATION, 0)


def test_a_survivor_that_crashes_while_it_is_stopped_is_no_cause() -> None:
    found = seen(exited(1, 99, index=0), deleted(exited(70, 104, index=1), 101))
    assert found.index == 0


def test_a_failure_before_the_deletion_is_told_by_its_exit() -> None:
    """Somebody cleaned up a pod that had failed on its own."""
    found = seen(deleted(exited(1, 99, index=1), 110), job=child())
    assert (found.cause, found.reason) == (Cause.APPLICATION, "NonZeroExit")


def test_in_one_second_a_deletion_is_the_cause_if_nothing_ended_on_its_own() -> None:
    found = seen(deleted(exited(143, 100, index=1), 100), deleted(exited(143, 101), 101))
    assert (found.cause, found.index) == (Cause.DISRUPTION, 1)


def test_in_one_second_a_peer_that_left_by_itself_was_there_before_the_deletion() -> None:
    found = seen(deleted(exited(143, 101, index=1), 100), exited(75, 100, index=0))
    assert (found.cause, found.index) == (Cause.UNKNOWN, 0)


def test_a_pod_that_is_killed_was_asked_to_end_before_whatever_the_clock_says() -> None:
    """The kubelet lets a pod go with a second deletion, which may move the time of the first."""
    found = seen(deleted(exited(143, 99, index=1), 100, grace=0), job=child())
    assert (found.cause, found.reason) == (Cause.DISRUPTION, "PodDeleted")


def test_in_one_second_a_failure_on_its_own_is_the_cause_and_the_deletion_is_not() -> None:
    found = seen(deleted(exited(143, 101, index=1), 100), exited(1, 100, index=0))
    assert (found.cause, found.index) == (Cause.APPLICATION, 0)


@pytest.mark.parametrize("code", [1, 70, 75])
@pytest.mark.parametrize("asked", [99, 99.5, 100])
def test_a_survivor_that_is_deleted_before_the_job_says_that_it_failed_is_no_cause(
    code: int, asked: float
) -> None:
    """The Job controller deletes first and writes the condition afterwards."""
    found = seen(exited(code, 99, index=1), deleted(pod(0), asked), job=child())
    assert found.index == 1
    assert found.cause is not Cause.DISRUPTION


def test_a_deletion_before_anything_ended_counts_before_the_job_says_that_it_failed() -> None:
    found = seen(exited(75, 99, index=1), deleted(pod(0), 98), job=child())
    assert (found.index, found.cause) == (0, Cause.DISRUPTION)


def test_a_pod_that_vanished_without_a_word_was_deleted() -> None:
    found = seen(replace(pod(1), gone=True), job=child())
    assert (found.cause, found.reason, found.index) == (Cause.DISRUPTION, "PodDeleted", 1)


def test_c1_a_pod_that_does_not_end_after_its_deletion_is_on_a_lost_node() -> None:
    gone = deleted(pod(1), 100, grace=30)
    before = seen(gone, job=child(), now=100 + 30 + 30 + 59)
    after = seen(gone, job=child(), now=100 + 30 + 30 + 60)
    assert (before.reason, after.reason) == ("PodDeleted", "NodeLost")
    assert after.cause is Cause.DISRUPTION


def test_pods_of_another_attempt_show_nothing() -> None:
    other = exited(1, 50, attempt=2)
    assert evidence([other], child(), attempt=1, paused=False, now=at(60)) is None


def test_while_suspended_deleted_pods_show_nothing_and_failed_ones_do() -> None:
    stopped = deleted(exited(143, 99), 90)
    assert evidence([stopped], child(), attempt=1, paused=True, now=at(120)) is None
    assert seen(stopped, exited(65, 80, index=1), paused=True).reason == "GateNotMet"


def test_a_pod_that_the_kubelet_refused_failed_for_its_reason() -> None:
    refused = pod(0, phase="Failed", ready=False, pod_reason="UnexpectedAdmissionError")
    assert seen(refused).reason == "UnexpectedAdmissionError"


@pytest.mark.parametrize("reason", ["", "no CamelCase", "x" * 80, "9Lives"])
def test_a_reason_that_is_no_word_is_replaced(reason: str) -> None:
    found = seen(pod(0, disruption=happened(reason, 90)))
    assert found.reason == "Disrupted"


def test_the_story_names_worker_node_exit_code_and_last_words() -> None:
    text = told(seen(exited(73, 99, index=3, message='{"cause": "no space left"}')))
    for part in ("worker 3", "node-3", "73", "OutputUnwritable", "no space left"):
        assert part in text

"""What goes on after the end (L10), and work of which nobody hears any more."""

import pytest

from quantfleet_api.status import ConditionType, JobStatus, Phase, ReportedProgress
from quantfleet_operator.decision import Decision, Delete
from quantfleet_operator.observed import Observed, format_time
from reconcile_builders import (
    at,
    child,
    decide,
    exited,
    failed_child,
    gang,
    running,
    settle,
    truth,
    view,
)

SMALL = ["NetworkPolicy", "ConfigMap", "ServiceAccount", "Service"]


def deletions(decision: Decision) -> list[str]:
    return [action.kind for action in decision.actions if isinstance(action, Delete)]


def failed_by_time() -> JobStatus:
    status = decide(running(policy={"activeDeadlineSeconds": 50}), gang(), 50).status
    assert truth(status, ConditionType.FAILED) == ("True", "DeadlineExceeded")
    assert status is not None
    return status


@pytest.mark.parametrize(
    ("left", "kinds"),
    [
        (Observed(jobs=(child(),), service_exists=True), ["Job", *SMALL]),
        (Observed(service_exists=True), SMALL),
        (Observed(jobs=(child(),)), ["Job"]),
        (Observed(), []),
    ],
)
def test_what_a_deletion_left_is_deleted_by_a_later_look(left: Observed, kinds: list[str]) -> None:
    """The status is final before the first deletion, of which any may fail."""
    assert deletions(decide(view(failed_by_time()), left, 100_000)) == kinds


def test_nothing_of_a_failed_job_runs_on_and_what_ended_stays_to_be_read() -> None:
    ended = gang(exited(64, 99), job=failed_child())
    status = decide(running(), ended, 101).status
    assert truth(status, ConditionType.FAILED) == ("True", "InvalidInput")
    assert deletions(decide(view(status), gang(), 102)) == ["Job"]
    assert deletions(decide(view(status), ended, 102)) == []


def reported(seconds: float) -> JobStatus:
    """The status of a job that runs, with a report of that time."""
    heard = format_time(at(seconds))
    progress = ReportedProgress(attempt=1, stage="Calibrating", last_update_time=heard)
    return running().status.model_copy(update={"progress": progress})


def test_a_gang_that_is_silent_is_said_to_be_and_goes_on() -> None:
    """A report that stays out proves nothing: it is no failure."""
    quiet = decide(view(reported(100)), gang(), 700)
    assert (quiet.status, quiet.requeue_after) == (None, 1)
    job, decision = settle(view(reported(100)), gang(), 701)
    assert truth(job.status, ConditionType.PROGRESSING) == ("False", "NoRecentReport")
    assert truth(job.status, ConditionType.FAILED)[0] == "False"
    assert (job.status.phase, decision.actions) == (Phase.CALIBRATING, ())
    heard = job.status.model_copy(update={"progress": reported(710).progress})
    again = decide(view(heard), gang(), 711).status
    assert truth(again, ConditionType.PROGRESSING) == ("True", "GangRunning")

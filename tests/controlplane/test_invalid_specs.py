"""A manifest that parses and can never work ends at once, with words that say what to change."""

from typing import Any

import pytest

from workplaces import Workplace

pytestmark = pytest.mark.controlplane

NEVER = [
    pytest.param(
        {"options": {"env": [{"name": "MASTER_ADDR", "value": "x"}]}}, "MASTER_ADDR", id="env"
    ),
    pytest.param(
        {"options": {"labels": {"quantfleet.io/attempt": "7"}}}, "quantfleet.io/attempt", id="label"
    ),
    pytest.param(
        {"options": {"resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "2"}}}},
        "cpu",
        id="requests-above-limits",
    ),
    pytest.param(
        {"options": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
        "toleration",
        id="toleration",
    ),
]


@pytest.mark.parametrize(("asked", "named"), NEVER)
def test_a_spec_that_can_never_work_is_refused_in_one_write_and_has_no_child(
    workplace: Workplace, asked: dict[str, Any], named: str
) -> None:
    job = workplace.submit("never", **asked)
    job.wait_condition("Failed", reason="InvalidSpec", seconds=20)
    accepted = job.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert named.lower() in accepted["message"].lower()
    assert job.children() == set()
    status = job.status()
    assert (status["phase"], status["attempt"]) == ("Failed", 0)
    assert "ValidationFailed" in [event["reason"] for event in job.events()]

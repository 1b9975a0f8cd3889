"""The claims of a job: each once, in order, and whether workers may write there."""

from typing import Any

import pytest

from engine_runs import make_manifest
from quantfleet_api.claims import claims_of
from quantfleet_api.loading import parse_job


def place(claim: str) -> dict[str, Any]:
    return {"pvc": {"claimName": claim}}


def test_claims_are_named_once_and_that_of_the_output_is_writable() -> None:
    evaluation = {"windowCount": 1, "windowLength": 8}
    job = parse_job(make_manifest("m", {"scheme": "W8A8"}, evaluation=evaluation))
    spec = job.spec.model_dump(mode="json", by_alias=True)
    assert list(claims_of(spec).items()) == [("models", True), ("data", True), ("out", False)]


@pytest.mark.parametrize(
    ("spec", "claims"),
    [
        ({}, {}),
        ({"model": None, "output": {"pvc": {}}}, {}),
        ({"model": {"source": place("a")}, "output": place("a")}, {"a": False}),
        ({"output": place("b"), "evaluation": {"source": place("a")}}, {"a": True, "b": False}),
    ],
)
def test_a_spec_that_was_never_checked_may_lack_any_part(
    spec: dict[str, Any], claims: dict[str, bool]
) -> None:
    assert claims_of(spec) == claims

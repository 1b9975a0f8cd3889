"""What may change after a job was created: the spec's few fields, and a status until its end."""

from typing import Any

import pytest

from cluster_access import MERGE, Cluster, Refused, path_of
from crd_cases import ACTIVATIONS, CALIBRATION, EVALUATION
from manifests import Edits, edited, minimal
from plane_fixtures import new_namespace
from quantfleet_api.crd import schema

pytestmark = pytest.mark.controlplane

FULL = {
    "spec.calibration": CALIBRATION,
    "spec.evaluation": EVALUATION,
    "spec.recipe.scheme": "W8A8",
    "spec.recipe.activations": ACTIVATIONS,
}
"""Edits of the shortest manifest that give it every part that may be absent."""

# (edits of the manifest before, edits on top of it, the message)
REFUSED: list[tuple[Edits, Edits, str]] = [
    ({}, {"spec.model.source.pvc.path": "other"}, "model cannot be changed"),
    ({}, {"spec.calibration": CALIBRATION}, "calibration cannot be changed"),
    (FULL, {"spec.calibration.sampleCount": 5}, "calibration cannot be changed"),
    (FULL, {"spec.recipe.activations": None}, "recipe cannot be changed"),
    ({}, {"spec.recipe.overrides": []}, "recipe cannot be changed"),
    ({}, {"spec.workers": {"count": 2}}, "workers cannot be changed"),
    ({}, {"spec.workers": {"image": "other"}}, "workers cannot be changed"),
    ({}, {"spec.output.pvc.path": "other"}, "output cannot be changed"),
    ({}, {"spec.checkpoint": {"everyLayers": 2}}, "checkpoint cannot be changed"),
    ({}, {"spec.evaluation": EVALUATION}, "evaluation cannot be changed"),
    (FULL, {"spec.evaluation": None}, "evaluation cannot be changed"),
    ({}, {"spec.runPolicy": {"backoffLimit": 4}}, "backoffLimit cannot be changed"),
    ({"spec.runPolicy": {"backoffLimit": 4}}, {"spec.runPolicy": None}, "backoffLimit cannot"),
]
ACCEPTED: list[tuple[Edits, Edits]] = [
    ({}, {"spec.runPolicy": {"suspend": True}}),
    ({"spec.runPolicy": {"suspend": True}}, {"spec.runPolicy": None}),
    ({}, {"spec.runPolicy": {"activeDeadlineSeconds": 60}}),
    ({"spec.runPolicy": {"activeDeadlineSeconds": 60}}, {"spec.runPolicy": {}}),
    ({}, {"spec.runPolicy": {"preRunningDeadlineSeconds": 60}}),
    ({}, {"spec.runPolicy": {"ttlSecondsAfterFinished": 0}}),
    ({}, {"metadata.labels": {"team": "models"}}),
    (FULL, {"spec.workers": {"count": 1}}),  # the default, written out
]


def put(cluster: Cluster, namespace: str, before: Edits, change: Edits) -> None:
    """Create a job, then replace it with one that differs by `change`."""
    first = minimal(before)
    created = cluster.create("quantizationjobs", first, namespace=namespace)
    second = edited(first, change)
    second["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"]
    path = path_of("quantizationjobs", "small", namespace=namespace)
    try:
        cluster.access.call("PUT", path, second)
    finally:
        cluster.delete("quantizationjobs", "small", namespace=namespace)


@pytest.fixture(scope="module")
def place(cluster: Cluster) -> str:
    """A namespace for all tests here; nothing runs in it."""
    return new_namespace(cluster, "changes")


@pytest.mark.parametrize(
    ("before", "change", "message"),
    REFUSED,
    ids=lambda value: value if isinstance(value, str) else "+".join(value)[:40],
)
def test_most_of_a_spec_is_fixed(
    cluster: Cluster, place: str, before: Edits, change: Edits, message: str
) -> None:
    with pytest.raises(Refused, match=message) as refused:
        put(cluster, place, before, change)
    assert refused.value.status == 422


def test_every_fixed_field_has_a_case() -> None:
    spec = schema()["properties"]["spec"]
    fixed = {*spec["properties"], "backoffLimit"} - {"runPolicy"}
    assert {message.split(" ")[0] for _, _, message in REFUSED} == fixed


@pytest.mark.parametrize(("before", "change"), ACCEPTED, ids=lambda value: "+".join(value)[:40])
def test_the_rest_may_change(cluster: Cluster, place: str, before: Edits, change: Edits) -> None:
    put(cluster, place, before, change)


NOW = "2026-01-02T03:04:05Z"


def condition(kind: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Test", "lastTransitionTime": NOW}


RUNNING = {"attempt": 3, "phase": "Calibrating", "conditions": [condition("Accepted")]}
ENDED = {
    "observedGeneration": 1,
    "attempt": 3,
    "phase": "Succeeded",
    "conditions": [condition("Accepted"), condition("Complete")],
}
PROGRESS = {"attempt": 3, "stage": "Calibrating", "lastUpdateTime": NOW}


@pytest.fixture
def said(cluster: Cluster, namespace: str) -> Any:
    """Writes the status of a job: a whole one first, then a merge patch on it."""
    cluster.create("quantizationjobs", minimal(), namespace=namespace)

    def write(first: dict[str, Any], patch: dict[str, Any] | None) -> dict[str, Any]:
        for status in (first, patch):
            answer = cluster.patch(
                "quantizationjobs",
                "small",
                {"status": status},
                namespace=namespace,
                sub="status",
                content=MERGE,
            )
        return answer

    return write


@pytest.mark.parametrize(
    ("first", "patch", "message"),
    [
        (RUNNING, {"attempt": 2}, "attempt cannot decrease"),
        (RUNNING, {"attempt": None}, "attempt cannot decrease"),
        (RUNNING, None, "status cannot be removed"),
        (RUNNING, {"conditions": [condition("Complete"), condition("Failed")]}, "cannot be both"),
        (ENDED, {"phase": "Calibrating"}, "status is final"),
        (ENDED, {"phase": None}, "status is final"),
        (ENDED, {"attempt": 4}, "status is final"),
        (ENDED, {"conditions": [condition("Accepted")]}, "status is final"),
        (ENDED, {"conditions": None}, "status is final"),
        (ENDED, {"progress": PROGRESS}, "status is final"),
        (ENDED, {"workers": {"ready": 1}}, "status is final"),
        ({"conditions": [condition("Failed")]}, {"attempt": 1}, "status is final"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_status_that_is_refused(
    said: Any, first: dict[str, Any], patch: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(Refused, match=message) as refused:
        said(first, patch)
    assert refused.value.status == 422


@pytest.mark.parametrize(
    ("first", "patch"),
    [
        (RUNNING, {"attempt": 3}),
        (RUNNING, {"attempt": 4, "progress": PROGRESS}),
        (RUNNING, {"progress": {**PROGRESS, "attempt": 1}}),
        ({"conditions": [condition("Complete", "False")]}, {"phase": "Failed"}),
        ({"progress": PROGRESS}, {"attempt": 1}),
        (ENDED, {"observedGeneration": 2}),
        (ENDED, {"conditions": list(reversed(ENDED["conditions"]))}),  # type: ignore[call-overload]
    ],
    ids=str,
)
def test_status_that_is_accepted(said: Any, first: dict[str, Any], patch: dict[str, Any]) -> None:
    status = said(first, patch)["status"]
    expected = {**first, **patch}
    assert {key: status[key] for key in expected} == expected


def test_spec_may_change_after_the_end(said: Any, cluster: Cluster, namespace: str) -> None:
    said(ENDED, {})
    change = {"spec": {"runPolicy": {"ttlSecondsAfterFinished": 60}}}
    changed = cluster.patch("quantizationjobs", "small", change, namespace=namespace)
    assert changed["metadata"]["generation"] == 2

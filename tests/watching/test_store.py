"""The store: newer wins, only what is ours, evidence of pods that are gone, the resync (C15)."""

from typing import Any

import pytest

from quantfleet_api.names import attempt_labels, child_labels, job_name
from quantfleet_operator.store import Store
from reconcile_builders import NAME, NAMESPACE, UID, spec

KEY = (NAMESPACE, NAME)
JOB = job_name(NAME, UID, 1)


def quantization(version: int = 1, *, uid: str = UID, attempt: int = 1) -> dict[str, Any]:
    meta = {"namespace": NAMESPACE, "name": NAME, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": spec(), "status": {"attempt": attempt}}


def owner(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    return [{"kind": kind, "name": name, "uid": uid, "controller": True}]


def job(version: int = 2, **more: Any) -> dict[str, Any]:
    meta = {
        "namespace": NAMESPACE,
        "name": JOB,
        "uid": "j",
        "resourceVersion": str(version),
        "labels": attempt_labels(NAME, UID, 1),
        "ownerReferences": owner("QuantizationJob", NAME, UID),
    }
    return {"metadata": meta | more, "spec": {}}


def pod(version: int = 3, *, uid: str = "p", status: Any = None, **more: Any) -> dict[str, Any]:
    meta = {
        "namespace": NAMESPACE,
        "name": f"{JOB}-0-x",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": attempt_labels(NAME, UID, 1),
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        "ownerReferences": owner("Job", JOB, "j"),
    }
    return {"metadata": meta | more, "spec": {}, "status": status or {"phase": "Running"}}


def filled() -> Store:
    store = Store()
    store.put("QuantizationJob", quantization())
    store.put("Job", job())
    store.put("Pod", pod())
    return store


def test_an_older_version_does_not_come_back() -> None:
    store = filled()
    store.put("QuantizationJob", quantization(9, attempt=5))
    store.put("QuantizationJob", quantization(8, attempt=4))
    found = store.view(KEY)
    assert found is not None
    assert found.status.attempt == 5


def test_a_late_answer_does_not_bring_back_what_was_deleted() -> None:
    store = filled()
    store.remove("Job", job(5))
    store.put("Job", job(4))
    assert store.children(UID).jobs == {}


def test_a_job_made_again_under_its_name_has_none_of_the_old_children() -> None:
    store = filled()
    store.put("QuantizationJob", quantization(9, uid="fedcb000-0000-4000-8000-000000000000"))
    found = store.view(KEY)
    assert found is not None
    assert store.children(found.uid).jobs == {}
    assert store.children(UID).jobs == {}


LOOK_ALIKES = {
    "no owner": {"ownerReferences": []},
    "another owner": {"ownerReferences": owner("QuantizationJob", NAME, "other")},
    "another name": {"name": "tiny-0123a-a2"},
    "no labels": {"labels": {}},
    "labels of a child without attempt": {"labels": child_labels(NAME, UID)},
}


@pytest.mark.parametrize("more", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_a_job_that_only_looks_like_ours_is_not(more: dict[str, Any]) -> None:
    store = Store()
    store.put("QuantizationJob", quantization())
    assert store.put("Job", job(**more)) is None
    assert store.children(UID).jobs == {}


def test_a_pod_of_another_controller_is_no_worker() -> None:
    store = Store()
    store.put("QuantizationJob", quantization())
    assert store.put("Pod", pod(ownerReferences=owner("ReplicaSet", "web", "r"))) is None


def test_c3_a_pod_that_is_gone_is_remembered_until_its_attempt_is_over() -> None:
    store = filled()
    store.remove("Pod", pod(5, deletionTimestamp="2026-01-01T00:00:00Z"))
    (gone,) = store.children(UID).pods.values()
    assert gone.gone
    assert gone.asked is not None
    store.put("QuantizationJob", quantization(9, attempt=2))
    assert store.children(UID).pods == {}


def test_c9_a_pod_of_a_suspended_job_leaves_no_trace() -> None:
    store = filled()
    suspended = job(4)
    suspended["spec"]["suspend"] = True
    store.put("Job", suspended)
    store.remove("Pod", pod(5))
    assert store.children(UID).pods == {}


def test_the_first_time_that_a_deletion_was_asked_for_stays() -> None:
    store = filled()
    first = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    last = {"deletionTimestamp": "2026-01-01T00:00:07Z", "deletionGracePeriodSeconds": 0}
    store.put("Pod", pod(4, **first))
    store.remove("Pod", pod(5, **last))
    (gone,) = store.children(UID).pods.values()
    assert gone.asked is not None
    assert gone.asked.second == 0


def test_nothing_is_left_of_a_job_whose_children_outlive_it() -> None:
    store = filled()
    store.remove("QuantizationJob", quantization(9))
    store.put("Pod", pod(10))
    store.remove("Pod", pod(11))
    assert store.keys() == ()
    assert store.children(UID).pods == {}
    assert not store._known
    assert not store._children


def test_a_resync_finds_what_no_watch_brought() -> None:
    store = filled()
    assert store.replace_all("Job", (job(6),), "7", None) == {KEY}
    assert store.replace_all("Job", (job(6),), "8", None) == set()


def test_a_resync_finds_what_went_while_no_watch_looked() -> None:
    store = filled()
    assert store.replace_all("Job", (), "7", None) == {KEY}
    assert store.children(UID).jobs == {}
    assert store.replace_all("QuantizationJob", (), "7", NAMESPACE) == {KEY}
    assert store.view(KEY) is None


def test_a_resync_leaves_what_is_newer_than_its_list_or_in_another_namespace() -> None:
    store = filled()
    store.put("Job", job(9))
    assert store.replace_all("Job", (), "7", None) == set()
    assert store.replace_all("Pod", (), "7", "elsewhere") == set()
    assert store.children(UID).jobs.keys() == {"j"}
    assert store.children(UID).pods.keys() == {"p"}


def test_jobs_are_counted_by_phase() -> None:
    store = filled()
    assert store.phases()["Pending"] == 1
    assert store.phases()["Failed"] == 0

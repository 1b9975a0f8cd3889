"""The rights that the chart grants are the ones that the operator uses, each and no other (T15).

The operator runs outside, with a token of the chart's service account, through all that a job's
life can ask of it; the API server's audit log says what it asked for.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import pod_states
from chart import Installed, install, of_kind
from child_process import wait_for
from cluster_access import Json, retry_conflicts
from control_plane import ControlPlane
from job_lives import LIVES, Care, judge
from plane_fixtures import new_namespace
from quantfleet_operator.manifests.identity import CONTENT_ANNOTATION
from quantization_jobs import Quantization, publishes
from reporting_jobs import Reporting, ServerPlace, open_server_place, rank
from workplaces import Workplace, open_workplace

pytestmark = pytest.mark.controlplane

Right = tuple[str, str, str]
"""Group, resource with its subresource, verb."""
CHILDREN = ("services", "configmaps", "serviceaccounts", "networkpolicies")


def entries(plane: ControlPlane, user: str) -> list[Json]:
    """All that the audit log has about a user's requests for objects."""
    with plane.audit_log.open() as lines:
        found = [json.loads(line) for line in lines if user in line and line.endswith("\n")]
    return [
        entry
        for entry in found
        if entry["user"]["username"] == user and "resource" in entry.get("objectRef", {})
    ]


def right_of(entry: Json) -> Right:
    where = entry["objectRef"]
    resource = "/".join(part for part in (where["resource"], where.get("subresource")) if part)
    return where.get("apiGroup", ""), resource, entry["verb"]


def used(plane: ControlPlane, user: str) -> set[Right]:
    return {right_of(entry) for entry in entries(plane, user)}


def granted(rules: list[dict[str, Any]]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rules_of(installed: Installed, namespace: str, part: str = "operator") -> list[dict[str, Any]]:
    """The rules that the release has for its operator (or server), as the API server has them."""
    own_label = f"app.kubernetes.io/instance={installed.release}"
    told = installed.plane.cluster.kubectl(
        "get", "clusterroles,roles", "-A", "-o", "json", "-l", own_label
    )
    roles = json.loads(told)["items"]
    own = of_kind(roles, "ClusterRole") + of_kind(roles, "Role")
    return [
        rule
        for role in own
        if (
            role["metadata"]["name"].endswith(f"-{part}")
            and role["metadata"].get("namespace", namespace) == namespace
        )
        or (
            role["metadata"]["name"].endswith(f"-{part}-certificate")
            and role["metadata"]["namespace"] == installed.namespace
        )
        for rule in role["rules"]
    ]


def live_through_all(workplace: Workplace, user: str, plane: ControlPlane) -> None:
    """Lives of jobs that together use every right."""
    for live in LIVES.values():
        judge(*live(workplace, Care()))
    mended(workplace)
    lost(workplace)
    forgotten(workplace)
    waiting(workplace, user, plane)
    hurried(workplace, user, plane)


def mended(workplace: Workplace) -> None:
    """Children that are not as they should be are brought to it before the next attempt."""
    job, pods = workplace.submit_running("mended")
    for plural, name in job.children():
        if plural in CHILDREN:
            body = {"metadata": {"annotations": {CONTENT_ANNOTATION: "of-another-version"}}}
            job.cluster.patch(plural, name, body, namespace=job.namespace)
    pod_states.finish(workplace.cluster, pods[1], 1)
    job.wait_running(2)
    for plural, name in job.children():
        if plural in CHILDREN:
            found = job.cluster.get(plural, name, namespace=job.namespace)
            assert found["metadata"]["annotations"][CONTENT_ANNOTATION] != "of-another-version"
    job.delete()


def lost(workplace: Workplace) -> None:
    """A Job that somebody deleted is asked for before its attempt is given up."""
    job, _ = workplace.submit_running("lost")
    options = {"propagationPolicy": "Background"}
    name = job.wait_job(1)["metadata"]["name"]
    job.cluster.delete("jobs", name, namespace=job.namespace, options=options)
    job.wait_job(2)
    job.delete()


def forgotten(workplace: Workplace) -> None:
    """The children of a job that ended long enough ago are deleted."""
    policy = {"ttlSecondsAfterFinished": 0}
    job = workplace.submit("forgotten", behaviour=publishes, policy=policy)
    job.wait_condition("Complete")
    wait_for("children deleted", lambda: not job.children())


def waiting(workplace: Workplace, user: str, plane: ControlPlane) -> None:
    """Where pods do not say why they do not start, events and claims are asked."""
    job = workplace.submit("waiting")
    job.wait_job(1)
    asked = {("", "events", "list"), ("", "persistentvolumeclaims", "get")}
    wait_for("events and claims asked", lambda: asked <= used(plane, user), seconds=90)
    job.delete()


def hurried(workplace: Workplace, user: str, plane: ControlPlane) -> None:
    """A job that changes while its status is written is read anew."""
    job = workplace.submit("hurried")
    job.wait_job(1)

    def touched(job: Quantization, count: int) -> None:
        body = {"metadata": {"labels": {"touched": str(count)}}, "spec": {"runPolicy": {}}}
        body["spec"]["runPolicy"]["suspend"] = count % 2 == 1  # type: ignore[index]
        retry_conflicts(
            lambda: job.cluster.patch("quantizationjobs", job.name, body, namespace=job.namespace)
        )

    numbers = iter(range(1, 100_000))

    def read_anew() -> bool:
        for _ in range(20):
            touched(job, next(numbers))
        return ("quantfleet.io", "quantizationjobs", "get") in used(plane, user)

    wait_for("a job read anew", read_anew, seconds=90)
    job.delete()


def refused(plane: ControlPlane, user: str) -> list[Right]:
    return [
        right_of(entry)
        for entry in entries(plane, user)
        if entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    ]


def released(plane: ControlPlane, release: str, only: str | None) -> Installed:
    """The chart for one namespace, or for all."""
    options = ("--set", f"watchNamespaces={{{only}}}") if only else ()
    # the definition belongs to the first release
    first = plane.cluster.find("customresourcedefinitions", "quantizationjobs.quantfleet.io")
    own = ("--set", f"crds.enabled={'false' if first else 'true'}")
    return install(plane, release, *options, *own)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster-wide", "one namespace"])
def test_t15_every_right_is_used_and_none_is_lacking(
    bare_plane: ControlPlane, tmp_path: Path, everywhere: bool
) -> None:
    namespace = new_namespace(bare_plane.cluster, "rights")
    release = "everywhere" if everywhere else "here"
    installed = released(bare_plane, release, None if everywhere else namespace)
    user = installed.operator_user

    settings = {
        "QUANTFLEET_WATCH_NAMESPACES": "" if everywhere else namespace,
        "QUANTFLEET_PROGRESS_URL": "https://localhost:8443",
        "QUANTFLEET_SERVER_SECRET": installed.server_secret,
        "QUANTFLEET_SERVER_NAMESPACE": installed.namespace,
    }
    with open_workplace(
        bare_plane, namespace, tmp_path, token=installed.token(), settings=settings
    ) as workplace:
        live_through_all(workplace, user, bare_plane)
        assert workplace.operator.answers("healthz"), workplace.operator.log()

    assert refused(bare_plane, user) == []
    rights = granted(rules_of(installed, namespace))
    assert used(bare_plane, user) - rights == set(), "used, but not granted"
    assert rights - used(bare_plane, user) == set(), "granted, but never used"


def touch(job: Reporting, number: int) -> None:
    """Changes a job, but nothing that matters."""
    body = {"metadata": {"labels": {"touched": str(number)}}}
    retry_conflicts(
        lambda: job.cluster.patch("quantizationjobs", job.name, body, namespace=job.namespace)
    )


def report_through_all(place: ServerPlace, user: str, plane: ControlPlane) -> None:
    """A job whose progress is reported and read, and which changes while that is written."""
    job = place.submit("reported")
    worker, reader = job.worker(), place.reader()
    assert reader.get(f"{job.path}/history").status == 200
    numbers = iter(range(1, 100_000))

    def read_anew() -> bool:
        for _ in range(10):
            touch(job, next(numbers))
        stage = ("Calibrating", "Verifying")[next(numbers) % 2]
        job.post(worker, rank(stage=stage, layer=next(numbers)))
        return ("quantfleet.io", "quantizationjobs", "get") in used(plane, user)

    wait_for("a job read anew", read_anew, seconds=90)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster-wide", "one namespace"])
def test_t15_every_right_of_the_server_is_used_and_none_is_lacking(
    bare_plane: ControlPlane, tmp_path: Path, everywhere: bool
) -> None:
    namespace = new_namespace(bare_plane.cluster, "reporting")
    release = "server-everywhere" if everywhere else "server-here"
    installed = released(bare_plane, release, None if everywhere else namespace)
    user = installed.server_user

    with open_server_place(
        bare_plane,
        namespace,
        tmp_path,
        token=installed.token("server"),
        settings={"QUANTFLEET_WATCH_NAMESPACES": "" if everywhere else namespace},
    ) as place:
        report_through_all(place, user, bare_plane)

    assert refused(bare_plane, user) == []
    rights = granted(rules_of(installed, namespace, "server"))
    assert used(bare_plane, user) - rights == set(), "used, but not granted"
    assert rights - used(bare_plane, user) == set(), "granted, but never used"


def test_rights_of_users(bare_plane: ControlPlane) -> None:
    """view reads jobs, edit makes them, admin too; nobody else gets anything."""
    cluster = bare_plane.cluster
    if cluster.find("customresourcedefinitions", "quantizationjobs.quantfleet.io") is None:
        install(bare_plane, "users")
    namespace = new_namespace(cluster, "users")
    for role in ("view", "edit", "admin"):
        who = (f"--clusterrole={role}", f"--user={role}")
        cluster.kubectl("create", "rolebinding", role, *who, "-n", namespace)

    def can(user: str, verb: str, *what: str) -> bool:
        asked = ("auth", "can-i", verb, "quantizationjobs.quantfleet.io", *what)
        told = cluster.kubectl(*asked, f"--as={user}", "-n", namespace, check=False)
        return told.startswith("yes")

    wait_for("roles aggregated", lambda: can("edit", "create") and can("view", "list"))
    assert [can("view", verb) for verb in ("get", "list", "watch")] == [True] * 3
    assert not any(can("view", verb) for verb in ("create", "update", "patch", "delete"))
    for user in ("edit", "admin"):
        verbs = ("get", "create", "update", "patch", "delete", "deletecollection")
        assert all(can(user, verb) for verb in verbs), user
        assert not can(user, "patch", "--subresource=status")
    assert not can("stranger", "get")

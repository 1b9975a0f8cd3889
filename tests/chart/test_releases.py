"""A release comes, is upgraded and goes, with jobs in the cluster all the while."""

import copy
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml

import pod_states
from chart import CHART, Installed, helm, install
from child_process import wait_for
from cluster_access import Cluster, Json, Refused
from control_plane import ControlPlane
from operator_process import OperatorProcess
from plane_fixtures import new_namespace
from quantfleet_api import crd
from quantfleet_operator.settings import settings_from
from quantfleet_server import settings as server_settings
from quantization_jobs import PUBLISHED, Quantization, publishes
from workplaces import open_workplace

pytestmark = pytest.mark.controlplane

DEFINITION = "quantizationjobs.quantfleet.io"
OPERATOR_OF_BEFORE = """
import quantfleet_api.crd
quantfleet_api.crd.schema_hash = lambda: {hash!r}
"""
"""Makes an operator of the previous version from the present one: it expects another schema."""


def previous_schema() -> Json:
    """The definition's spec as it was before a field was added to the status."""
    before = copy.deepcopy(crd.definition()["spec"])
    schema = before["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["progress"]["properties"]["totalSamples"]
    return dict(before)


def hash_of(specification: Json) -> str:
    text = json.dumps(specification, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def previous_chart(folder: Path) -> Path:
    """A package of the chart's previous version: another schema, one object less."""
    copied = folder / "quantfleet"
    shutil.copytree(CHART, copied)
    about = yaml.safe_load((copied / "Chart.yaml").read_text())
    (copied / "Chart.yaml").write_text(
        yaml.safe_dump({**about, "version": "0.0.9", "appVersion": "0.0.9"})
    )
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": DEFINITION,
            "annotations": {
                crd.SCHEMA_HASH_ANNOTATION: hash_of(previous_schema()),
                "helm.sh/resource-policy": "keep",
            },
        },
        "spec": previous_schema(),
    }
    (copied / "templates" / "crd.yaml").write_text(yaml.safe_dump(definition))
    (copied / "templates" / "pod-disruption-budget.yaml").unlink()
    helm("package", str(copied), "--destination", str(folder))
    return folder / "quantfleet-0.0.9.tgz"


def operator_of_before(folder: Path) -> dict[str, str]:
    """Environment that makes the operator the previous version's."""
    place = folder / "before"
    place.mkdir()
    code = OPERATOR_OF_BEFORE.format(hash=hash_of(previous_schema()))
    (place / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(place)}


def everything_of(job: Quantization) -> Json:
    """What must survive: status, children and pods, each as the API server has it."""
    return {
        "version": job.read()["metadata"]["resourceVersion"],
        "status": job.status(),
        "jobs": {found["metadata"]["name"]: found["metadata"]["uid"] for found in job.jobs()},
        "children": sorted(job.children()),
        "pods": [(pod["metadata"]["uid"], pod["status"]["phase"]) for pod in job.pods()],
    }


def live_hash(cluster: Cluster) -> str:
    found = cluster.get("customresourcedefinitions", DEFINITION)
    return str(found["metadata"]["annotations"][crd.SCHEMA_HASH_ANNOTATION])


@pytest.mark.timeout(300)
def test_upgrade_with_jobs_running(bare_plane: ControlPlane, tmp_path: Path) -> None:
    """Running jobs go on, nothing is restarted, no status is lost; the new schema is there."""
    cluster = bare_plane.cluster
    installed = install(bare_plane, "up", chart=previous_chart(tmp_path))
    assert live_hash(cluster) == hash_of(previous_schema()) != crd.schema_hash()
    namespace = new_namespace(cluster, "upgraded")

    with open_workplace(
        bare_plane,
        namespace,
        tmp_path,
        token=installed.token(),
        settings={"QUANTFLEET_WATCH_NAMESPACES": "", **operator_of_before(tmp_path)},
    ) as place:
        done = place.submit("done", behaviour=publishes)
        done.wait_condition("Complete")
        held, _ = place.submit_running("held")
        held.change(suspend=True)
        held.wait_condition("Suspended")
        running, _ = place.submit_running("running")
        wait_for("pods of the suspended job gone", lambda: not held.pods())
        wait_for("workers counted", lambda: running.status()["workers"].get("ready") == 2)
        jobs = (done, held, running)
        place.operator.kill()
        before = [everything_of(job) for job in jobs]

        after_upgrade = OperatorProcess(
            kubeconfig=place.operator.kubeconfig,
            namespaces=(),
            folder=tmp_path,
            settings={"QUANTFLEET_WORKER_IMAGE": "none.invalid/quantfleet-worker:newer"},
        )
        after_upgrade.start(wait=False)
        try:
            not_ready_before(after_upgrade)
            installed.helm("upgrade", str(CHART))
            after_upgrade.wait_ready()
            assert live_hash(cluster) == crd.schema_hash()
            all_looked_at(after_upgrade, len(jobs))
            assert [everything_of(job) for job in jobs] == before

            pod_states.complete(cluster, running.wait_job(1), message=PUBLISHED)
            running.wait_condition("Complete")
            held.change(suspend=False)
            held.wait_running(1)
            assert running.status()["attempt"] == held.status()["attempt"] == 1
        finally:
            after_upgrade.kill()


def not_ready_before(operator: OperatorProcess) -> None:
    """The new operator with the old schema does nothing, and says why (rule C14)."""
    told = "has the schema of another version of the operator"
    wait_for("the operator to see another schema", lambda: told in operator.log())
    assert operator.alive()
    assert operator.answers("healthz")
    assert not operator.answers("readyz")


def all_looked_at(operator: OperatorProcess, jobs: int) -> None:
    """Until the operator looked at each job that it found when it started."""
    wait_for("all looked at", lambda: operator.metric("quantfleet_reconciles_total") >= jobs)


@pytest.fixture
def release(bare_plane: ControlPlane) -> Installed:
    """The chart, installed where nothing of it was."""
    cluster = bare_plane.cluster
    cluster.delete("customresourcedefinitions", DEFINITION)
    wait_for("no CRD", lambda: cluster.find("customresourcedefinitions", DEFINITION) is None)
    number = len(cluster.list("namespaces"))
    return install(bare_plane, f"one{number}")


@pytest.mark.parametrize("part", ["operator", "server"])
def test_deployments_are_accepted_with_restricted_pod_security(
    release: Installed, part: str
) -> None:
    cluster = release.plane.cluster
    deployment = wait_for(
        f"a pod of the {part}",
        lambda: d if (d := release.deployment(part))["status"].get("replicas") else None,
    )
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"].endswith(part)
    labels = f"app.kubernetes.io/component={part}"
    where = {"namespace": release.namespace, "labels": labels}
    (pod,) = wait_for("its pod", lambda: cluster.list("pods", **where))
    (container,) = pod["spec"]["containers"]
    environment = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    read = settings_from if part == "operator" else server_settings.settings_from
    assert read(environment).namespaces == ()


def test_an_upgrade_leaves_the_certificate_as_it_is(release: Installed) -> None:
    cluster, name = release.plane.cluster, release.server_secret
    filled = {"data": {"tls.crt": "Zmlyc3Q=", "ca.key": "c2Vjb25k"}}
    cluster.patch("secrets", name, filled, namespace=release.namespace)
    release.helm("upgrade", str(CHART), "--set", "progress.writeSeconds=11")
    found = cluster.get("secrets", name, namespace=release.namespace)
    assert found["data"] == filled["data"]


def test_notes_say_how_to_go_on(release: Installed) -> None:
    cluster = release.plane.cluster
    where = ("-n", release.namespace)
    told = helm("get", "notes", release.release, *where, kubeconfig=cluster.kubeconfig)
    assert "kubectl get qj -w" in told
    assert release.namespace in told
    assert "create token ACCOUNT --audience server.quantfleet.io" in told


def test_t07_uninstalling_leaves_jobs_and_nothing_that_holds_them(
    release: Installed, tmp_path: Path
) -> None:
    cluster = release.plane.cluster
    namespace = new_namespace(cluster, "left")
    with open_workplace(release.plane, namespace, tmp_path, token=release.token()) as workplace:
        job, pods = workplace.submit_running("left")
        workplace.operator.kill()
        release.helm("uninstall", "--wait")

        assert left_of(release) == []
        assert job.status()["attempt"] == 1
        assert "finalizers" not in job.read()["metadata"]
        job.delete()
        wait_for("the job gone", lambda: gone(job))
        for pod in pods:
            pod_states.terminate(cluster, pod)
        wait_for("its children gone", lambda: not job.children() and not job.pods(), seconds=90)


def gone(job: Quantization) -> bool:
    return job.cluster.find("quantizationjobs", job.name, namespace=job.namespace) is None


def left_of(release: Installed) -> list[str]:
    """What the release left behind, its CRD apart."""
    kinds = (
        "deployments,services,serviceaccounts,networkpolicies,poddisruptionbudgets,roles,"
        "rolebindings,clusterroles,clusterrolebindings,crds"
    )
    label = f"app.kubernetes.io/instance={release.release}"
    found = release.plane.cluster.kubectl("get", kinds, "-A", "-o", "name", "-l", label)
    definition = f"customresourcedefinition.apiextensions.k8s.io/{DEFINITION}"
    return [name for name in found.splitlines() if name and name != definition]


def test_a_release_comes_back_to_its_kept_definition_and_jobs(release: Installed) -> None:
    cluster = release.plane.cluster
    namespace = new_namespace(cluster, "kept")
    body = yaml.safe_load((CHART.parents[1] / "examples" / "smollm2-w8a8.yaml").read_text())
    cluster.create("quantizationjobs", body, namespace=namespace)
    uid = cluster.get("customresourcedefinitions", DEFINITION)["metadata"]["uid"]

    release.helm("uninstall", "--wait")
    release.helm("install", str(CHART))

    assert cluster.get("customresourcedefinitions", DEFINITION)["metadata"]["uid"] == uid
    assert cluster.list("quantizationjobs", namespace=namespace)


def test_a_definition_that_is_not_kept_goes_with_the_release(release: Installed) -> None:
    release.helm("upgrade", str(CHART), "--set", "crds.keep=false")
    release.helm("uninstall", "--wait")
    cluster = release.plane.cluster
    wait_for("no CRD", lambda: cluster.find("customresourcedefinitions", DEFINITION) is None)
    with pytest.raises(Refused) as refused:
        cluster.list("quantizationjobs")
    assert refused.value.status == 404


def test_previous_schema_is_another_one() -> None:
    assert hash_of(crd.definition()["spec"]) == crd.schema_hash()
    assert hash_of(previous_schema()) != crd.schema_hash()

"""What workers trust is brought to jobs that run, and to no others (C19)."""

from dataclasses import replace

from quantfleet_operator.decision import CreateJob, Ensure
from quantfleet_operator.manifests.identity import Manifest
from quantfleet_operator.observed import Observed
from quantfleet_operator.reconcile import reconcile
from quantfleet_operator.settings import Settings
from reconcile_builders import SETTINGS, at, child, gang, pod, running, view

REPORTING = replace(SETTINGS, progress_url="https://server:8443", server_secret="tls")


def ensured(settings: Settings, *, stale: bool) -> list[Manifest]:
    observed = replace(gang(pod(0), pod(1), job=child(ready=2)), trust_stale=stale)
    actions = reconcile(running(), observed, at(20), settings).actions
    return [action.manifest for action in actions if isinstance(action, Ensure)]


def test_a_running_job_gets_the_new_authority_and_nothing_else() -> None:
    (manifest,) = ensured(replace(REPORTING, progress_ca="NEW"), stale=True)
    assert (manifest["kind"], manifest["data"]["ca.crt"]) == ("ConfigMap", "NEW")


def test_a_running_job_that_trusts_the_right_one_is_left_alone() -> None:
    assert ensured(replace(REPORTING, progress_ca="OLD"), stale=False) == []


def test_pods_are_told_where_the_authority_will_be_before_it_is_known() -> None:
    actions = reconcile(view(), Observed(), at(0), REPORTING).actions
    (job,) = [action.manifest for action in actions if isinstance(action, CreateJob)]
    (worker,) = job["spec"]["template"]["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in worker["env"]}
    assert variables["QUANTFLEET_PROGRESS_CA_FILE"] == "/etc/quantfleet/ca.crt"
    path = "/apis/v1alpha1/namespaces/work/quantizationjobs/tiny/progress"
    assert variables["QUANTFLEET_PROGRESS_URL"] == f"https://server:8443{path}"

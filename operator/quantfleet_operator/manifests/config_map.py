"""The ConfigMap that workers read: the resolved job and the progress server's certificates."""

import json

from quantfleet_api.names import API_VERSION, KIND
from quantfleet_operator.admission import Admitted
from quantfleet_operator.manifests.identity import Manifest, child
from quantfleet_operator.settings import Settings

JOB_FILE = "job.json"
CA_FILE = "ca.crt"


def config_map(job: Admitted, settings: Settings) -> Manifest:
    """The job in full, but for `runPolicy`: that may change while workers run and is not theirs."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec.pop("runPolicy", None)
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name},
        "spec": spec,
    }
    data = {JOB_FILE: json.dumps(manifest, indent=1, sort_keys=True) + "\n"}
    if settings.progress_ca:
        data[CA_FILE] = settings.progress_ca
    return child(job, api_version="v1", kind="ConfigMap", content={"data": data})

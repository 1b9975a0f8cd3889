"""The headless Service: it gives every worker a host name before any worker is ready.

It is the first child to be made and the last to be deleted, so that it is there as long as any
other child of the job may be.
"""

from quantfleet_api.names import JOB_UID_LABEL
from quantfleet_operator.admission import Admitted
from quantfleet_operator.manifests.environment import MASTER_PORT
from quantfleet_operator.manifests.identity import Manifest, child


def service(job: Admitted) -> Manifest:
    """A Service without address of its own, whose names resolve while workers still start."""
    content = {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_UID_LABEL: job.uid},
            "ports": [{"name": "rendezvous", "port": MASTER_PORT, "protocol": "TCP"}],
        }
    }
    return child(job, api_version="v1", kind="Service", content=content)

"""The workers' own ServiceAccount: bound to nothing, and without a token (law L9, rule C17)."""

from quantfleet_operator.admission import Admitted
from quantfleet_operator.manifests.identity import Manifest, child


def service_account(job: Admitted) -> Manifest:
    """An account whose only use is that no other pod can ask for this job's audience."""
    content = {"automountServiceAccountToken": False}
    return child(job, api_version="v1", kind="ServiceAccount", content=content)

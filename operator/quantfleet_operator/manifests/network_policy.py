"""The NetworkPolicy of a gang: its members talk to each other, and to nobody else.

Collectives have no authentication: whoever reaches a rank's port can join or break the gang.
"""

from urllib.parse import urlsplit

from quantfleet_api.names import JOB_UID_LABEL
from quantfleet_operator.admission import Admitted
from quantfleet_operator.manifests.identity import Manifest, child
from quantfleet_operator.settings import Settings

DNS_PORT = 53


def network_policy(job: Admitted, settings: Settings) -> Manifest:
    """In: the gang. Out: the gang, name resolution, and the progress server's port."""
    gang = {"podSelector": {"matchLabels": {JOB_UID_LABEL: job.uid}}}
    dns = [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]
    egress: list[Manifest] = [{"to": [gang]}, {"ports": dns}]
    if settings.progress_url:
        egress.append({"ports": [{"protocol": "TCP", "port": _port(settings.progress_url)}]})
    content = {
        "spec": {
            **gang,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [gang]}],
            "egress": egress,
        }
    }
    return child(job, api_version="networking.k8s.io/v1", kind="NetworkPolicy", content=content)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (80 if parts.scheme == "http" else 443)

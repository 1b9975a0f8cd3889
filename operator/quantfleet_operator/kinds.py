"""The kinds of objects that the operator touches, and where the API server keeps them."""

from urllib.parse import quote

from quantfleet_api.names import API_VERSION, KIND, PLURAL

_PLURALS = {
    (API_VERSION, KIND): PLURAL,
    ("batch/v1", "Job"): "jobs",
    ("v1", "Pod"): "pods",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Secret"): "secrets",
    ("v1", "Event"): "events",
    ("v1", "PersistentVolumeClaim"): "persistentvolumeclaims",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    ("events.k8s.io/v1", "Event"): "events",
}


def path_of(
    api_version: str, kind: str, namespace: str | None, name: str = "", subresource: str = ""
) -> str:
    """The URL path of an object, or of all objects of a kind in a namespace (None: anywhere)."""
    root = f"/api/{api_version}" if api_version == "v1" else f"/apis/{api_version}"
    place = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
    path = f"{root}{place}/{_PLURALS[api_version, kind]}"
    for part in (name, subresource):
        path += f"/{quote(part, safe='')}" if part else ""
    return path

"""Names and labels of what belongs to a job, and the length budget behind them (rule C13).

Used by the operator, which makes these objects, and by whoever looks for them. Names carry the
first five hex digits of the job's UID, so that a job that is deleted and made again under the same
name never meets what is left of the first; the Job's name carries the attempt, so that no pod of
an older attempt can be reached under a host name of the present one.
"""

from collections.abc import Mapping

GROUP = "quantfleet.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "QuantizationJob"
PLURAL = "quantizationjobs"
SINGULAR = "quantizationjob"
SHORT_NAME = "qj"
CRD_NAME = f"{PLURAL}.{GROUP}"

MOST_NAME = 46
"""Characters of a job's name: 63 of a host name, less "-xxxxx", "-a999" and "-9999"."""
MOST_WORKERS = 10_000
MOST_ATTEMPTS = 999
MOST_HOST_NAME = 63

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "quantfleet"
JOB_NAME_LABEL = f"{GROUP}/job-name"
JOB_UID_LABEL = f"{GROUP}/job-uid"
ATTEMPT_LABEL = f"{GROUP}/attempt"
SELECTOR = f"{MANAGED_BY_LABEL}={MANAGED_BY}"
"""The label selector of all children."""
RESERVED_LABEL_PREFIXES = (f"{GROUP}/", "batch.kubernetes.io/", "kubernetes.io/", "k8s.io/")
RESERVED_LABELS = frozenset({MANAGED_BY_LABEL, "job-name", "controller-uid"})


def uid5(uid: str) -> str:
    """The first five hex digits of a UID."""
    return uid.replace("-", "")[:5]


def child_name(name: str, uid: str) -> str:
    """Name of the job's Service, ConfigMap, ServiceAccount and NetworkPolicy."""
    return f"{name}-{uid5(uid)}"


service_name = child_name
"""Name of the headless Service, which is also the pods' subdomain."""


def job_name(name: str, uid: str, attempt: int) -> str:
    """Name of the batch/v1 Job of an attempt, counted from 1."""
    return f"{child_name(name, uid)}-a{attempt}"


def host_name(name: str, uid: str, attempt: int, index: int) -> str:
    """Host name of the pod with a completion index, a DNS label."""
    return f"{job_name(name, uid, attempt)}-{index}"


def master_address(name: str, uid: str, attempt: int, namespace: str) -> str:
    """Where rank 0 listens; the cluster's domain is left to the pod's resolver."""
    return f"{host_name(name, uid, attempt, 0)}.{service_name(name, uid)}.{namespace}.svc"


def fits(name: str, workers: int) -> bool:
    """Whether every pod of every attempt can have a host name of at most 63 characters."""
    longest = host_name(name, "0" * 32, MOST_ATTEMPTS, max(0, workers - 1))
    return len(name) <= MOST_NAME and workers <= MOST_WORKERS and len(longest) <= MOST_HOST_NAME


def child_labels(name: str, uid: str) -> dict[str, str]:
    """Labels of every child of a job."""
    return {MANAGED_BY_LABEL: MANAGED_BY, JOB_NAME_LABEL: name, JOB_UID_LABEL: uid}


def attempt_labels(name: str, uid: str, attempt: int) -> dict[str, str]:
    """Labels of the Job and the pods of an attempt."""
    return {**child_labels(name, uid), ATTEMPT_LABEL: str(attempt)}


def attempt_of(labels: Mapping[str, str]) -> int | None:
    """The attempt that labels name, or None where they name none."""
    text = labels.get(ATTEMPT_LABEL, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else None


def token_audience(uid: str, attempt: int) -> str:
    """Audience of the token with which workers of an attempt report progress."""
    return f"quantfleet/{uid}/{attempt}"

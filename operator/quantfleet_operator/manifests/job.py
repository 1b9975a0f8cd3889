"""The batch/v1 Job of an attempt: a gang that starts as one and fails as one (rule C4)."""

from quantfleet_api.names import attempt_labels, job_name
from quantfleet_operator.admission import Admitted
from quantfleet_operator.evidence import PERMANENT
from quantfleet_operator.manifests.identity import Manifest, child
from quantfleet_operator.manifests.pod import pod_template
from quantfleet_operator.observed import WORKER_CONTAINER
from quantfleet_operator.settings import Settings


def attempt_job(job: Admitted, attempt: int, settings: Settings) -> Manifest:
    """The Job of an attempt, counted from 1.

    No worker is ever replaced, since a collective cannot go on with one: the first failure ends
    the attempt. Deadlines and time to live belong to the operator, as they span attempts.
    """
    content = {
        "spec": {
            "completionMode": "Indexed",
            "completions": job.count,
            "parallelism": job.count,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": pod_template(job, attempt, settings),
        }
    }
    return child(
        job,
        api_version="batch/v1",
        kind="Job",
        content=content,
        name=job_name(job.name, job.uid, attempt),
        labels=attempt_labels(job.name, job.uid, attempt),
    )


def _failure_rules() -> list[Manifest]:
    """What the Job names as the reason of its failure; the cause is told from its pods (C3)."""
    codes = sorted(int(code) for code in PERMANENT)
    exits = {"containerName": WORKER_CONTAINER, "operator": "In", "values": codes}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        {"action": "FailJob", "onExitCodes": exits},
        {"action": "FailJob", "onPodConditions": disrupted},
    ]

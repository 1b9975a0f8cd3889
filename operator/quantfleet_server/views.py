"""What the server answers with, as models: they are the schemas of the OpenAPI document, too."""

from typing import Literal

from quantfleet_api.fields import Manifest
from quantfleet_api.names import API_VERSION, KIND
from quantfleet_api.report import LayerReport, RankReport, ReportSummary
from quantfleet_api.status import JobStatus, PublishedOutput, ReportedProgress, Time
from quantfleet_server.board import Board
from quantfleet_server.jobs import Job, Raw
from quantfleet_server.live import Live
from quantfleet_server.times import format_time


class Meta(Manifest):
    """Which job it is."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name."""
    uid: str
    """Its UID: another one under the same name is another job."""
    resource_version: str
    """The version of the object that the answer is from."""
    creation_timestamp: str
    """When it was created."""


class JobView(Manifest):
    """A job: the object's status, with the progress that was reported last."""

    api_version: Literal["quantfleet.io/v1alpha1"] = "quantfleet.io/v1alpha1"
    """Always quantfleet.io/v1alpha1."""
    kind: Literal["QuantizationJob"] = "QuantizationJob"
    """Always QuantizationJob."""
    metadata: Meta
    """Which job it is."""
    status: JobStatus
    """What is said of it. Once it has ended, the same as in the object; before, its progress is up
    to 15 s ahead."""


class JobList(Manifest):
    """The jobs that the caller may see, by namespace and name."""

    api_version: Literal["quantfleet.io/v1alpha1"] = "quantfleet.io/v1alpha1"
    """Always quantfleet.io/v1alpha1."""
    kind: Literal["QuantizationJobList"] = "QuantizationJobList"
    """Always QuantizationJobList."""
    items: tuple[JobView, ...]
    """The jobs."""


class ProgressView(Manifest):
    """What the workers reported last."""

    attempt: int
    """The present attempt."""
    progress: ReportedProgress | None = None
    """Absent until a worker of the present attempt reported."""


class RankView(Manifest):
    """A rank and its last report."""

    pod: int
    """Completion index of its pod."""
    last_update_time: Time
    """When the report came in, by the server's clock."""
    report: RankReport
    """The report."""


class Ranks(Manifest):
    """The ranks of the present attempt that reported since the server started."""

    attempt: int
    """The attempt."""
    ranks: tuple[RankView, ...]
    """By number."""


class LayerView(Manifest):
    """A committed layer."""

    attempt: int
    """The attempt that told of it."""
    report: LayerReport
    """What it told."""


class Layers(Manifest):
    """The committed layers that are known; once the job has ended, the report file has them."""

    attempt: int
    """The present attempt."""
    layers: tuple[LayerView, ...]
    """By number."""


class OutputView(Manifest):
    """What was published."""

    output: PublishedOutput | None = None
    """Path and digest; absent until the job is complete."""
    summary: ReportSummary | None = None
    """What the workers said at their end; absent after a restart of the server."""


class KubernetesEvent(Manifest):
    """An event about the job."""

    type: str
    """Normal or Warning."""
    reason: str
    """One CamelCase word."""
    message: str
    """A sentence."""
    time: str
    """When it happened last."""
    count: int
    """How often."""


class History(Manifest):
    """The events of Kubernetes about the job that the API server still has, oldest first."""

    items: tuple[KubernetesEvent, ...]
    """The events."""


def job_view(board: Board, job: Job) -> JobView:
    """A job as it is now."""
    assert (API_VERSION, KIND) == ("quantfleet.io/v1alpha1", "QuantizationJob")
    meta = Meta(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        resource_version=str(job.version),
        creation_timestamp=job.created,
    )
    return JobView(metadata=meta, status=board.status(job))


def ranks_view(live: Live) -> Ranks:
    """The ranks of a job."""
    ranks = tuple(
        RankView(pod=state.pod, last_update_time=format_time(state.heard), report=state.report)
        for _, state in sorted(live.ranks.items())
    )
    return Ranks(attempt=live.attempt, ranks=ranks)


def layers_view(live: Live) -> Layers:
    """The layers of a job."""
    layers = tuple(
        LayerView(attempt=state.attempt, report=state.report)
        for _, state in sorted(live.layers.items())
    )
    return Layers(attempt=live.attempt, layers=layers)


def event_view(raw: Raw) -> KubernetesEvent:
    """An event as it was written by whichever of the two APIs of events."""
    series, meta = raw.get("series") or {}, raw["metadata"]
    times = (series.get("lastObservedTime"), raw.get("lastTimestamp"), raw.get("eventTime"))
    return KubernetesEvent(
        type=raw.get("type") or "Normal",
        reason=raw.get("reason") or "",
        message=raw.get("message") or "",
        time=next((time for time in times if time), meta.get("creationTimestamp") or ""),
        count=series.get("count") or raw.get("count") or 1,
    )

"""The progress report: what a worker pod tells the status server over HTTPS, and what it hears.

Written by the launcher of each worker pod for the ranks of that pod, read by the status server. A
report never fails a job (law L9): whoever sends one goes on whatever the answer is. There is no
time in it, because the server's own clock counts; `sequence` tells which report is newer.
"""

from math import isfinite
from typing import Annotated

from pydantic import Field, StrictBool, StrictInt

from quantfleet_api.fields import Manifest, NaturalInt
from quantfleet_api.names import GROUP, MOST_ATTEMPTS, MOST_WORKERS, PLURAL, VERSION
from quantfleet_api.progress import Progress, Stage
from quantfleet_api.termination import MOST_CAUSE

MOST_BODY_BYTES = 64 * 1024
"""Longest report that the server reads."""
MOST_RANKS = 64
"""Ranks of one pod."""
MOST_LAYERS = 128
"""Layers in one report; the rest follow in the next ones."""
MOST_RANK_MESSAGE = 96
MOST_SECONDS = 2**31 - 1

Attempt = Annotated[StrictInt, Field(ge=1, le=MOST_ATTEMPTS)]
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rank = Annotated[StrictInt, Field(ge=0, le=2**20)]


class RankReport(Manifest):
    """Where one rank is; the same as `Progress`, as it travels."""

    rank: Rank
    """Number of the rank in the gang."""
    world_size: Annotated[StrictInt, Field(ge=1, le=2**20)]
    """Ranks of the gang."""
    stage: Stage
    """What the rank is doing."""
    layer: NaturalInt = 0
    """Layers that are finished."""
    num_layers: NaturalInt = 0
    """Layers of the model; embedding and head count."""
    micro_batch: NaturalInt = 0
    """Micro-batches that this rank has done in the present pass."""
    num_micro_batches: NaturalInt = 0
    """Micro-batches of this rank."""
    pass_index: NaturalInt = 0
    """1 = observed pass, 2 = quantized pass."""
    num_passes: NaturalInt = 0
    """Passes over a layer."""
    samples: NaturalInt = 0
    """Samples that this rank has done in the present pass."""
    num_samples: NaturalInt = 0
    """Samples of this rank in a pass."""
    tokens_per_second: Figure = 0.0
    """Tokens a second of this rank, over the present pass."""
    eta_seconds: Seconds | None = None
    """Estimate of the time that is left, in seconds; absent while there is none."""
    message: Annotated[str, Field(max_length=MOST_RANK_MESSAGE)] = ""
    """A few words for people."""


class LayerReport(Manifest):
    """A layer that is committed."""

    layer: NaturalInt
    """Number of the layer, counted from 0; embedding and head count."""
    seconds: Seconds
    """Time from its first micro-batch to its commit, in seconds."""
    relative_error: Figure | None = None
    """The worst relative output error of its linears; absent where it is not finite or has none."""
    repeated: StrictBool = False
    """Whether an attempt before had begun it already."""


class ReportSummary(Manifest):
    """The end of the job's story, as its report file tells it."""

    digest: Annotated[str, Field(max_length=80, pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """Digest of the published manifest; absent where nothing was published."""
    size_bytes: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] | None = None
    """Sum of all published files, in bytes."""
    file_count: NaturalInt | None = None
    """Number of published files."""
    warnings: NaturalInt | None = None
    """Number of warnings; the report beside the output names them."""
    cause: Annotated[str, Field(max_length=MOST_CAUSE)] = ""
    """Why nothing was published."""


class ProgressReport(Manifest):
    """One message of a worker pod about its ranks."""

    attempt: Attempt
    """The attempt that the pod belongs to."""
    pod: Annotated[StrictInt, Field(ge=0, lt=MOST_WORKERS)]
    """Completion index of the pod."""
    sequence: Annotated[StrictInt, Field(ge=0, le=2**53 - 1)]
    """Grows by at least one with each report of this pod; what is not newer is dropped."""
    final: StrictBool = False
    """Whether this is the last report of the pod."""
    ranks: Annotated[tuple[RankReport, ...], Field(min_length=1, max_length=MOST_RANKS)]
    """The ranks of this pod."""
    layers: Annotated[tuple[LayerReport, ...], Field(max_length=MOST_LAYERS)] = ()
    """Layers that the server lacks; from pod 0 only."""
    summary: ReportSummary | None = None
    """From pod 0 in its final report only."""


class ReportAnswer(Manifest):
    """What the server says to a report that it took."""

    stale: StrictBool = False
    """Whether the report was dropped, because a newer one of this pod was there."""
    known_layers: NaturalInt = 0
    """Layers that the server heard of in this attempt, counted from layer 0 to the first that it
    lacks: send from that one on. Fewer than were sent: the server started anew."""
    min_interval_seconds: Seconds = 1.0
    """Send no report sooner than this after the one before, but for a new stage and the last."""


def rank_report(progress: Progress) -> RankReport:
    """A rank's state as it travels: bounded, without values that JSON cannot hold."""
    data = progress.model_dump()
    eta, speed = data["eta_seconds"], data["tokens_per_second"]
    known = eta is not None and isfinite(eta)
    data["eta_seconds"] = min(max(eta, 0.0), float(MOST_SECONDS)) if known else None
    data["tokens_per_second"] = max(speed, 0.0) if isfinite(speed) else 0.0
    data["message"] = data["message"][:MOST_RANK_MESSAGE]
    return RankReport.model_validate(data)


def job_path(namespace: str, name: str) -> str:
    """URL path of a job on the status server."""
    return f"/apis/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"


def progress_url(base: str, namespace: str, name: str) -> str:
    """Where the workers of a job report, given the server's address (https://HOST[:PORT])."""
    return f"{base.rstrip('/')}{job_path(namespace, name)}/progress"


def server_audience() -> str:
    """Audience of the tokens with which people and programs read from the status server."""
    return f"server.{GROUP}"

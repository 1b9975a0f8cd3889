"""What the workers of one job reported, merged: ranks, layers, and the progress drawn from them.

Held in memory only. What of it the status keeps is where a server that starts anew goes on from;
ranks and layers are sent again by the workers (`ReportAnswer.known_layers`). Times are the
server's own; within an attempt layers and percent never go back.
"""

from dataclasses import dataclass, field
from datetime import datetime

from quantfleet_api.report import LayerReport, ProgressReport, RankReport, ReportSummary
from quantfleet_api.status import ReportedProgress
from quantfleet_server.times import format_time

MOST = 2**31 - 1
"""Largest number that the status holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """The last report of a pod."""

    sequence: int
    final: bool
    heard: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """Where a rank is, and when it was heard."""

    pod: int
    report: RankReport
    heard: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """A committed layer, and the attempt that told of it."""

    attempt: int
    report: LayerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of a report."""

    stale: bool = False
    stage_changed: bool = False
    layers: tuple[LayerReport, ...] = ()
    """Layers that were not known."""


@dataclass(slots=True, kw_only=True)
class Live:
    """The reports of one job; `progress` is what they come to."""

    attempt: int = 0
    pods: dict[int, PodState] = field(default_factory=dict)
    ranks: dict[int, RankState] = field(default_factory=dict)
    layers: dict[int, LayerState] = field(default_factory=dict)
    summary: ReportSummary | None = None
    progress: ReportedProgress | None = None
    _drawn: bool = False
    """Whether `progress` has all that is known."""

    def known_layers(self) -> int:
        """Layers that were told in the present attempt, up to the first that was not."""
        number = 0
        while (layer := self.layers.get(number)) is not None and layer.attempt == self.attempt:
            number += 1
        return number

    def seed(self, progress: ReportedProgress | None) -> None:
        """Goes on from what the status says, where that is newer than what is known."""
        if progress is not None and progress.attempt > self.attempt:
            self.begin(progress.attempt)
            self.progress = progress

    def begin(self, attempt: int) -> None:
        """A new attempt: what was heard of the one before no longer counts, but for its layers."""
        if attempt > self.attempt:
            self.attempt, self.progress, self.summary = attempt, None, None
            self.pods.clear()
            self.ranks.clear()

    def take(self, report: ProgressReport, now: datetime) -> Taken:
        """Merges a report of the present attempt, unless a newer one of its pod was there."""
        before = self.pods.get(report.pod)
        if before is not None and (before.final or report.sequence <= before.sequence):
            return Taken(stale=True)
        stage, self._drawn = self.stage(), False
        self.pods[report.pod] = PodState(sequence=report.sequence, final=report.final, heard=now)
        for rank in report.ranks:
            self.ranks[rank.rank] = RankState(pod=report.pod, report=rank, heard=now)
        new: tuple[LayerReport, ...] = ()
        if report.pod == 0:
            new = tuple(layer for layer in report.layers if self._is_new(layer))
            for layer in new:
                self.layers[layer.layer] = LayerState(attempt=self.attempt, report=layer)
            if report.final and report.summary is not None:
                self.summary = report.summary
        return Taken(stage_changed=self.stage() != stage, layers=new)

    def _is_new(self, layer: LayerReport) -> bool:
        known = self.layers.get(layer.layer)
        return known is None or known.attempt < self.attempt

    def stage(self) -> str:
        """The stage of rank 0, which leads the gang; of the lowest rank that is known, else ""."""
        return self.ranks[min(self.ranks)].report.stage if self.ranks else ""

    def draw(self) -> ReportedProgress | None:
        """Draws `progress` anew from all that is known, and returns it."""
        if self._drawn or not self.ranks:
            return self.progress
        self._drawn = True
        ranks = [state.report for state in self.ranks.values()]
        lead = self.ranks[min(self.ranks)].report
        before = self.progress
        layers = min(rank.layer for rank in ranks)
        total = max(rank.num_layers for rank in ranks)
        share = 100 if lead.stage == "Done" else min(99, _percent(ranks, total))
        if before is not None:
            layers, share = max(layers, before.layers_completed), max(share, before.percent)
            total = max(total, before.total_layers)
        heard = max(pod.heard for pod in self.pods.values())
        self.progress = ReportedProgress(
            attempt=self.attempt,
            stage=lead.stage,
            layers_completed=layers,
            total_layers=total,
            percent=share,
            samples_processed=min(sum(rank.samples for rank in ranks), MOST),
            total_samples=min(sum(rank.num_samples for rank in ranks), MOST),
            estimated_remaining_seconds=_remaining(lead, ranks),
            last_update_time=format_time(heard),
        )
        return self.progress


def _percent(ranks: list[RankReport], total: int) -> int:
    """The least that any rank has done of all layers, the present one by its passes."""
    if total == 0:
        return 0
    done = min(rank.layer + _of_layer(rank) for rank in ranks)
    return int(100 * min(done, total) / total)


def _of_layer(rank: RankReport) -> float:
    if rank.num_passes == 0 or rank.num_micro_batches == 0 or rank.pass_index == 0:
        return 0.0
    passes = rank.pass_index - 1 + rank.micro_batch / rank.num_micro_batches
    return min(1.0, passes / rank.num_passes)


def _remaining(lead: RankReport, ranks: list[RankReport]) -> int | None:
    if lead.stage == "Done":
        return 0
    known = [rank.eta_seconds for rank in ranks if rank.eta_seconds is not None]
    return round(max(known)) if known else None

"""What is known of a run while it runs: the latest message of each rank, and what follows from it.

Fed by the launcher's callback, read by the display; no output here.
"""

from dataclasses import dataclass, field

from quantfleet_api.progress import Progress, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The gang as a whole."""

    stage: Stage
    layer: int  # layers that every rank has finished
    num_layers: int
    fraction: float  # of all layers, micro-batches of the present one included; 0 to 1
    tokens_per_second: float  # of all ranks together
    eta_seconds: float | None  # of the slowest rank
    num_ranks: int
    message: str


@dataclass(slots=True)
class ProgressBoard:
    """The latest message of each rank. Never goes back, though messages may overtake each other."""

    _ranks: dict[int, Progress] = field(default_factory=dict)
    _fraction: float = 0.0

    def update(self, progress: Progress) -> None:
        """Takes a message in."""
        self._ranks = {**self._ranks, progress.rank: progress}  # readers keep a whole mapping

    def ranks(self) -> list[Progress]:
        """The latest message of each rank, by rank."""
        return [self._ranks[rank] for rank in sorted(self._ranks)]

    def overview(self) -> Overview | None:
        """The gang as a whole; None before the first message."""
        ranks = self.ranks()
        if not ranks:
            return None
        slowest = min(ranks, key=fraction_done)
        self._fraction = max(self._fraction, fraction_done(slowest))
        etas = [rank.eta_seconds for rank in ranks if rank.eta_seconds is not None]
        return Overview(
            stage=slowest.stage,
            layer=slowest.layer,
            num_layers=slowest.num_layers,
            fraction=self._fraction,
            tokens_per_second=sum(rank.tokens_per_second for rank in ranks),
            eta_seconds=max(etas, default=None),
            num_ranks=len(ranks),
            message=slowest.message,
        )


def fraction_done(progress: Progress) -> float:
    """A rank's share of its work: whole layers and the micro-batches of the present one."""
    if progress.stage == "Done":
        return 1.0
    if not progress.num_layers:
        return 0.0
    inside = 0.0
    if progress.num_passes and progress.num_micro_batches:
        passes = max(progress.pass_index - 1, 0) + progress.micro_batch / progress.num_micro_batches
        inside = min(passes / progress.num_passes, 1.0)
    return min((progress.layer + inside) / progress.num_layers, 1.0)


def overview_line(overview: Overview) -> str:
    """For example `Calibrating: layer 12/32, 37 %, 2,310 tokens/s a rank (2 ranks), ETA 3:12`."""
    parts = []
    if overview.num_layers:
        parts.append(f"layer {overview.layer}/{overview.num_layers}")
        parts.append(f"{100 * overview.fraction:.0f} %")
    if overview.tokens_per_second:
        rate = overview.tokens_per_second / overview.num_ranks
        parts.append(f"{rate:,.0f} tokens/s a rank ({overview.num_ranks} ranks)")
    if overview.eta_seconds is not None:
        parts.append(f"ETA {clock(overview.eta_seconds)}")
    if overview.message:
        parts.append(overview.message)
    return f"{overview.stage}: {', '.join(parts)}" if parts else overview.stage


def rank_cells(progress: Progress) -> tuple[str, ...]:
    """A rank's row: rank, stage, layer, pass, micro-batch, tokens/s, message."""
    present = min(progress.layer + 1, progress.num_layers)
    batches = f"micro-batch {progress.micro_batch}/{progress.num_micro_batches}"
    return (
        f"rank {progress.rank}",
        progress.stage,
        f"layer {present}/{progress.num_layers}" if progress.num_layers else "",
        f"pass {progress.pass_index}/{progress.num_passes}" if progress.pass_index else "",
        batches if progress.num_micro_batches else "",
        f"{progress.tokens_per_second:,.0f} tokens/s" if progress.tokens_per_second else "",
        progress.message,
    )


def clock(seconds: float) -> str:
    """For example `3:12` or `1:03:12`."""
    whole = max(round(seconds), 0)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""What one rank holds while it works: plan, layout, weights source, carry, exchange, writer.

`run.py` makes one; `layer_steps.py` moves it from layer to layer. The carry lives in host memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import torch
from torch import Tensor

from quantfleet_api.plan import FormatName, LayerPlan, Plan
from quantfleet_api.spec import QuantizationJob
from quantfleet_worker.clock import Clock
from quantfleet_worker.device import Device
from quantfleet_worker.exchange import Exchange
from quantfleet_worker.formats import FORMATS, Format
from quantfleet_worker.journal import LayerRecord
from quantfleet_worker.models.layers import Blocks
from quantfleet_worker.passes import Rows
from quantfleet_worker.pod_memory import PodReader
from quantfleet_worker.schedule import Layout
from quantfleet_worker.schemes import TORCH_DTYPES
from quantfleet_worker.source import Checkpoint, Prefetcher, Reader
from quantfleet_worker.work_folder import WorkFolder
from quantfleet_worker.writer import Writer


@dataclass(slots=True, kw_only=True)
class Engine:
    """One rank's state."""

    plan: Plan
    job: QuantizationJob
    layout: Layout
    exchange: Exchange
    blocks: Blocks
    checkpoint: Checkpoint
    reader: Reader
    weights: PodReader  # reads through `reader`, together with the other ranks of the pod
    prefetcher: Prefetcher
    folder: WorkFolder
    writer: Writer
    device: Device
    threads: int
    local_ranks: range  # of this rank's pod
    rows: Mapping[int, Rows]  # of this rank's micro-batches
    ids: Mapping[int, Tensor]  # token ids int64 [B, L] of this rank's micro-batches
    windows: Tensor | None  # evaluation, int64 [count, length]
    checkpoint_every: int  # layers
    planning_warnings: tuple[str, ...]
    progress: Callable[..., None]
    committed: Callable[[Sequence[LayerRecord]], None]  # tells which layers are; of rank 0
    should_stop: Callable[[], None]
    clock: Clock = field(default_factory=Clock)
    started: float = field(default_factory=monotonic)  # of this attempt
    carry: dict[int, Tensor] = field(default_factory=dict)  # [B, L, D] by micro-batch
    evaluation_bytes: int = 0  # of weights, read by this rank to measure perplexities
    layer_started: float = 0.0  # of the layer at work
    begun_before: int | None = None  # the layer that an attempt before began to solve, and lost

    @property
    def pod(self) -> int:
        """This rank's pod; on one machine, the only one."""
        return self.local_ranks.start // len(self.local_ranks)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.exchange.rank

    @property
    def dtype(self) -> torch.dtype:
        """The model's dtype."""
        return TORCH_DTYPES[self.plan.model_dtype]

    @property
    def first_format(self) -> Format:
        """The format from which the layer that runs is decoded."""
        return FORMATS[self.plan.formats[0]]

    def format_path(self, name: FormatName, file: str) -> str:
        """A file's path inside what is published."""
        several = len(self.plan.formats) > 1
        return f"{FORMATS[name].folder}/{file}" if several else file

    def take(self, layer: LayerPlan) -> dict[str, Tensor]:
        """The layer's source tensors; the next layer's are read in the background meanwhile."""
        with self.clock.measure("read"):
            source = self.prefetcher.take()
        following = layer.index + 1
        if following < len(self.plan.layers):
            self.prefetch(self.plan.layers[following])
        return with_head_weight(layer, source)

    def prefetch(self, layer: LayerPlan) -> None:
        """Begin to read a layer."""
        self.prefetcher.start([tensor.name for tensor in layer.source])


def with_head_weight(layer: LayerPlan, source: dict[str, Tensor]) -> dict[str, Tensor]:
    """A tied head that is quantized has the embedding's weight under its own name."""
    for site in layer.sites if layer.kind == "head" else ():
        for linear in site.linears:
            if f"{linear.name}.weight" not in source:
                embedding = next(t for t in layer.source if t.name not in layer.passed_through)
                source[f"{linear.name}.weight"] = source[embedding.name]
    return source

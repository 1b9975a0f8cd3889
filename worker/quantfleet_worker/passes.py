"""Passes of one rank's micro-batches through one layer, and the hooks that watch or serve it.

Called by `run.py` and `verify.py`. Hooks live only inside the context managers of this file. A
micro-batch is padded on the right, so the valid rows of a site's input are known in advance.

Shapes: B samples, L positions, N valid rows of a micro-batch, I channels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor, nn

from quantfleet_api.plan import ActivationScheme, LayerPlan, LinearPlan, MicroBatch, Plan
from quantfleet_worker.numerics import fake_quantize_per_token, fake_quantize_static
from quantfleet_worker.schemes import QuantizedLinear
from quantfleet_worker.statistics.reservoir import row_keys, threshold
from quantfleet_worker.statistics.site import SiteStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which rows of a micro-batch count, and which of those the reservoir may keep."""

    leaf: int
    valid_N: Tensor | None  # int64 indices into the B x L rows; None = all
    kept: Tensor  # int64 indices into the N valid rows
    keys: Tensor  # int64 keys of the kept rows


def rows_of_micro_batches(plan: Plan, indices: range) -> dict[int, Rows]:
    """Rows of each micro-batch of this rank; the same for every layer and site."""
    lengths = [
        (sample, length)
        for batch in plan.micro_batches
        for sample, length in zip(batch.samples, batch.lengths, strict=True)
    ]
    highest_key = threshold(lengths, plan.reservoir_rows)
    leaf_of = {
        index: leaf
        for leaf, (start, stop) in enumerate(plan.leaves)
        for index in range(start, stop)
    }
    return {
        index: _rows(plan.micro_batches[index], leaf_of[index], highest_key) for index in indices
    }


def _rows(batch: MicroBatch, leaf: int, highest_key: int) -> Rows:
    longest = max(batch.lengths)
    padded = any(length != longest for length in batch.lengths)
    valid = torch.cat(
        [torch.arange(length) + position * longest for position, length in enumerate(batch.lengths)]
    )
    keys = torch.cat(
        [
            row_keys(sample, length)
            for sample, length in zip(batch.samples, batch.lengths, strict=True)
        ]
    )
    kept = torch.nonzero(keys <= highest_key).flatten()
    return Rows(leaf=leaf, valid_N=valid if padded else None, kept=kept, keys=keys[kept])


def valid_rows(x_BLI: Tensor, rows: Rows) -> Tensor:
    """The valid rows [N, I] of a site's input; a view when nothing is padded."""
    x_RI = x_BLI.reshape(-1, x_BLI.shape[-1])
    return x_RI if rows.valid_N is None else x_RI.index_select(0, rows.valid_N.to(x_RI.device))


class Watch:
    """Hands each site's input to the site's statistics; `rows` is set before each micro-batch."""

    def __init__(self, statistics: Sequence[SiteStatistics | None]) -> None:
        self.statistics = statistics
        self.rows: Rows | None = None
        self.seconds = 0.0

    def see(self, site: int, x_BLI: Tensor) -> None:
        """Update one site's statistics."""
        statistics = self.statistics[site]
        assert self.rows is not None, "rows are set before a micro-batch runs"
        if statistics is not None:
            started = monotonic()
            statistics.update(self.rows.leaf, valid_rows(x_BLI, self.rows), self.rows)
            self.seconds += monotonic() - started


@contextmanager
def watched(module: nn.Module, layer: LayerPlan, watch: Watch, *, advance: bool) -> Iterator[None]:
    """Watch the sites of a layer; without `advance` its output is not wanted.

    The linears behind the last watched site then do nothing: their output would be thrown away.
    """
    last = max((i for i, s in enumerate(watch.statistics) if s is not None), default=-1)
    with ExitStack() as hooks:
        for index, site in enumerate(layer.sites):
            first = module.get_submodule(site.linears[0].local)
            if watch.statistics[index] is not None:
                hooks.callback(first.register_forward_pre_hook(_seeing(watch, index)).remove)
            if not advance and index >= last:
                for linear in site.linears:
                    hooks.enter_context(_idle(module.get_submodule(linear.local), linear))
        yield


def _seeing(watch: Watch, site: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        watch.see(site, arguments[0])

    return hook


@contextmanager
def _idle(module: nn.Module, linear: LinearPlan) -> Iterator[None]:
    """Make a linear return zeros [..., O] without computing."""

    def forward(x: Tensor) -> Tensor:
        return x.new_zeros(1).expand(*x.shape[:-1], linear.out_features)

    original = module.forward
    module.forward = forward
    try:
        yield
    finally:
        module.forward = original


@contextmanager
def served(
    module: nn.Module, layer: LayerPlan, quantized: Mapping[str, QuantizedLinear]
) -> Iterator[None]:
    """Fake-quantize each linear's input as a server will; weights are already the decoded ones.

    Linears of a site share their input, so it is quantized once for those with equal parameters.
    """
    with ExitStack() as hooks:
        for site in layer.sites:
            once = _Once()
            for linear in site.linears:
                if linear.scheme is None or linear.scheme.activations is None:
                    continue
                quantizer = activation_quantizer(linear.scheme.activations, quantized[linear.name])
                target = module.get_submodule(linear.local)
                hooks.callback(target.register_forward_pre_hook(once.hook(quantizer)).remove)
        yield


def activation_quantizer(
    scheme: ActivationScheme, linear: QuantizedLinear
) -> Callable[[Tensor], Tensor]:
    """The fake quantization of a linear's input [..., I]."""
    if scheme.kind == "dynamic":
        return fake_quantize_per_token
    assert linear.input_scale is not None, "a static scheme has an input scale"
    scale, zero_point = linear.input_scale, linear.input_zero_point

    def quantize(x: Tensor) -> Tensor:
        zero = None if zero_point is None else zero_point.to(x.device)
        return fake_quantize_static(x, scale.to(x.device), zero)

    return quantize


class _Once:
    """Remembers the last input of a site and what became of it."""

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._output: Tensor | None = None

    def hook(
        self, quantizer: Callable[[Tensor], Tensor]
    ) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]:
        # linears of one site have one scheme and one range (fused units), hence one quantizer
        def run(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
            if arguments[0] is not self._input or self._output is None:
                self._input, self._output = arguments[0], quantizer(arguments[0])
            return (self._output,)

        return run

"""Owners' work on one layer: smoothing factors, activation ranges, weight codes. Pure.

`solve_site` runs on the site's owner once its statistics are merged; its result goes to every rank.
`solve_task` runs on the task's owner. Both are functions of plan, weights and statistics alone, so
it does not matter which rank calls them.

Shapes: O out features, I in features, G groups, R rows of a task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantfleet_api.plan import (
    ActivationScheme,
    GPTQOptions,
    LayerPlan,
    LinearPlan,
    SitePlan,
    SmoothingPlan,
)
from quantfleet_worker.methods import error as errors
from quantfleet_worker.methods import gptq, rtn, smoothquant
from quantfleet_worker.observers import activation_parameters
from quantfleet_worker.schemes import QuantizedLinear, dequantized_weight
from quantfleet_worker.statistics.ranges import ChannelRanges
from quantfleet_worker.statistics.site import SiteStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSolution:
    """What all ranks need to know about a site.

    factors: float32 [I], by which the weights' columns are multiplied; None when not smoothed.
    input_scale float32 [1], input_zero_point int8 [1]: static activations only.
    counts: int64 [4] = rows, nonfinite, dead channels, clipped channels; None if not observed.
    """

    factors: Tensor | None = None
    input_scale: Tensor | None = None
    input_zero_point: Tensor | None = None
    counts: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSolution:
    """Codes int8 [R, I], scale float32 [R, G], zero_point int8 [R, G] or None of a task's rows.

    error, reference: squared error of the layer's output and its float energy, float32 scalars.
    notes: what had to be done otherwise than asked (law L11).
    """

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    error: float
    reference: float
    notes: tuple[str, ...] = ()


def static_scheme_of(site: SitePlan) -> ActivationScheme | None:
    """The static activation scheme of a site; its linears are one fused unit and share it."""
    for linear in site.linears:
        scheme = None if linear.scheme is None else linear.scheme.activations
        if scheme is not None and scheme.kind == "static":
            return scheme
    return None


def solve_site(
    site: SitePlan, statistics: SiteStatistics, weights: Mapping[str, Tensor]
) -> SiteSolution:
    """Smoothing factors and activation range of a site, from its merged statistics.

    `weights` are the layer's float weights by local linear name, any float dtype.
    """
    if not site.statistics:
        return SiteSolution()
    ranges = statistics.ranges
    factors = None if site.smoothing is None else _factors(site, site.smoothing, ranges, weights)
    scale = zero_point = None
    static = static_scheme_of(site)
    if static is not None:
        assert ranges is not None, "the plan collects ranges for static activations"
        scale, zero_point = activation_parameters(
            static,
            ranges,
            statistics.histogram,
            statistics.reservoir,
            factors,
        )
    return SiteSolution(
        factors=factors,
        input_scale=scale,
        input_zero_point=zero_point,
        counts=_counts(statistics, factors, scale, zero_point),
    )


def _factors(
    site: SitePlan,
    smoothing: SmoothingPlan,
    ranges: ChannelRanges | None,
    weights: Mapping[str, Tensor],
) -> Tensor:
    assert ranges is not None, "the plan collects ranges for smoothing"
    absmax_I = torch.stack(
        [weights[linear.local].abs().amax(dim=0).to(torch.float32) for linear in site.linears]
    ).amax(dim=0)
    alpha = float(smoothing.alpha)
    if smoothing.kind == "value_rows":
        return smoothquant.grouped_smoothing_factors(
            ranges.minimum,
            ranges.maximum,
            absmax_I,
            alpha=alpha,
            heads_per_group=smoothing.heads_per_group,
            head_dim=smoothing.head_dim,
        )[0]
    return smoothquant.smoothing_factors(ranges.minimum, ranges.maximum, absmax_I, alpha=alpha)


def _counts(
    statistics: SiteStatistics,
    factors: Tensor | None,
    scale: Tensor | None,
    zero_point: Tensor | None,
) -> Tensor:
    ranges = statistics.ranges
    if ranges is None:
        moment = statistics.second_moment
        seen = (0, 0) if moment is None else (moment.rows, moment.nonfinite_rows)
        return torch.tensor([*seen, 0, 0], dtype=torch.int64)
    low, high = ranges.minimum, ranges.maximum
    dead = int(((low == 0) & (high == 0)).sum())
    clipped = 0
    if scale is not None:
        if factors is not None:
            low, high = low / factors, high / factors
        zero = 0.0 if zero_point is None else float(zero_point)
        # half a step beyond the last code still rounds to it
        lowest, highest = (-128.5 - zero) * float(scale), (127.5 - zero) * float(scale)
        tolerance = 1e-5 * float(scale)
        clipped = int(((low < lowest - tolerance) | (high > highest + tolerance)).sum())
    return torch.tensor([ranges.rows, ranges.nonfinite, dead, clipped], dtype=torch.int64)


def measured_by(site: SitePlan) -> str:
    """What the reported output error of a site's linears is computed from."""
    if "second_moment" in site.statistics:
        return "second_moment"
    return "reservoir" if "reservoir" in site.statistics else "weights"


def row_divisors(layer: LayerPlan, solutions: Mapping[int, SiteSolution]) -> dict[str, Tensor]:
    """By local name of a norm or linear: what its weight (or rows) is divided by, float32."""
    divisors: dict[str, Tensor] = {}
    for index, site in enumerate(layer.sites):
        factors = solutions[index].factors
        if site.smoothing is not None and factors is not None:
            divisors[site.smoothing.source] = _by_source_row(factors, site.smoothing)
    return divisors


def _by_source_row(factors_I: Tensor, smoothing: SmoothingPlan) -> Tensor:
    """Factors by row of the source: query heads that share a kv head have equal ones."""
    if smoothing.kind != "value_rows":
        return factors_I
    by_head = factors_I.reshape(-1, smoothing.heads_per_group, smoothing.head_dim)
    return by_head[:, 0].reshape(-1)


def smoothed_weight(
    weight_OI: Tensor, factors_I: Tensor | None, divisor_O: Tensor | None
) -> Tensor:
    """The weight in float32 with its columns multiplied and its rows divided."""
    W_OI = weight_OI.to(torch.float32)
    if factors_I is not None:
        W_OI = W_OI * factors_I
    if divisor_O is not None:
        W_OI = W_OI / divisor_O.reshape(-1, 1)
    return W_OI


class SmoothedStatistics:
    """Second moment or reservoir of a site behind its smoothing factors, made once for all tasks.

    Lies on `device`, where the tasks are solved; H is factored on `factoring` (NPUs cannot).
    """

    def __init__(
        self,
        statistics: SiteStatistics,
        factors: Tensor | None,
        *,
        device: torch.device,
        factoring: torch.device,
    ) -> None:
        self.H_II: Tensor | None = None
        self.rows_NI: Tensor | None = None
        self._device, self._factoring = device, factoring
        self._factors: dict[GPTQOptions, gptq.Factor] = {}
        if statistics.second_moment is not None:
            H_II = statistics.second_moment.root()
            if factors is not None:
                H_II = smoothquant.smooth_second_moment(H_II, factors)
            self.H_II = H_II.to(device)
        elif statistics.reservoir is not None:
            rows = statistics.reservoir.rows
            self.rows_NI = (rows if factors is None else rows / factors).to(device)

    def factor(self, options: GPTQOptions) -> gptq.Factor:
        """The factor of H, which all linears of the site share."""
        assert self.H_II is not None, "the plan collects the second moment for GPTQ"
        if options not in self._factors:
            found = gptq.factor(self.H_II.to(self._factoring), options)
            self._factors[options] = replace(
                found,
                U_II=None if found.U_II is None else found.U_II.to(self._device),
                order=None if found.order is None else found.order.to(self._device),
            )
        return self._factors[options]


def solve_task(
    linear: LinearPlan,
    W_RI: Tensor,
    statistics: SmoothedStatistics,
    *,
    scale_dtype: torch.dtype,
) -> TaskSolution:
    """Quantize a task's rows of a linear's smoothed weight, float32."""
    assert linear.scheme is not None
    scheme = linear.scheme.weights
    notes: tuple[str, ...] = ()
    if scheme.gptq is not None:
        codes, scale, zero_point, notes = gptq.quantize_weight(
            W_RI, statistics.factor(scheme.gptq), scheme, scale_dtype=scale_dtype
        )
    else:
        codes, scale, zero_point = rtn.quantize_weight(W_RI, scheme, scale_dtype=scale_dtype)
    Q_RI = dequantized_weight(QuantizedLinear(codes=codes, scale=scale, zero_point=zero_point))
    if statistics.H_II is not None:
        error, reference = errors.output_error(W_RI, Q_RI, statistics.H_II)
    elif statistics.rows_NI is not None:
        error, reference = errors.reservoir_error(W_RI, Q_RI, statistics.rows_NI)
    else:
        error, reference = errors.weight_error(W_RI, Q_RI)
    return TaskSolution(
        codes=codes,
        scale=scale,
        zero_point=zero_point,
        error=float(error),
        reference=float(reference),
        notes=tuple(f"{linear.name}: {note}" for note in notes),
    )

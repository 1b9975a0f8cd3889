"""From a site's statistics to the one int8 range of its static activations.

Called by the site's owner once the statistics of all ranks are merged. All observers start from
the exact ranges; Percentile and MSE read the distribution from the universal-bin histogram. Where
smoothing divided the input, a histogram of the undivided input says nothing, and one is made from
the reservoir's rows.
"""

from fractions import Fraction
from math import ceil

import torch
from torch import Tensor

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import ActivationScheme, StatisticName
from quantfleet_worker.numerics import int_range, scale_zero_point
from quantfleet_worker.statistics.histogram import Bins, UniversalHistogram, quantile_bounds
from quantfleet_worker.statistics.ranges import ChannelRanges
from quantfleet_worker.statistics.reservoir import Reservoir

_OCTAVES = 12  # an outlier may be 4096 times what the best range ends at
_STEPS_AN_OCTAVE = 4  # of the coarse grid
_FINER_STEPS_AN_OCTAVE = (16, 64)  # of those around the best so far
_NEGLIGIBLE = 2.0 ** -(_OCTAVES + 9)  # of the largest value: rounds to 0 in every range tried


def needed_statistics(scheme: ActivationScheme | None, smoothed: bool) -> tuple[StatisticName, ...]:
    """What must be collected at a site for its activation range and smoothing factors."""
    if scheme is None or scheme.kind == "dynamic":
        return ("ranges",) if smoothed else ()
    if scheme.observer == "MinMax":
        return ("ranges",)
    return ("ranges", "reservoir" if smoothed else "histogram")


def activation_parameters(
    scheme: ActivationScheme,
    ranges: ChannelRanges,
    histogram: UniversalHistogram | None,
    reservoir: Reservoir | None,
    smoothing_I: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """input_scale float32 [1] and input_zero_point int8 [1] (None if symmetric) of a site.

    smoothing_I: the factors that divide the site's input, None if nothing does.
    """
    assert scheme.kind == "static"
    low, high = ranges.bounds(smoothing_I)
    if not bool(low <= high):
        raise InvalidInput(
            "calibration", f"{ranges.rows} tokens", "must give every layer finite activations"
        )
    if scheme.observer != "MinMax":
        bins = _distribution(histogram, reservoir, smoothing_I)
        if scheme.observer == "Percentile":
            low, high = _percentile(bins, low, high, scheme)
        else:
            low, high = _least_squares(bins, low, high, symmetric=scheme.symmetric)
    return scale_zero_point(low, high, bits=8, symmetric=scheme.symmetric)


def _distribution(
    histogram: UniversalHistogram | None, reservoir: Reservoir | None, smoothing_I: Tensor | None
) -> Bins:
    if smoothing_I is None:
        assert histogram is not None
        return histogram.finite()
    assert reservoir is not None
    smoothed = UniversalHistogram()
    smoothed.update(reservoir.rows / smoothing_I)
    return smoothed.finite()


def _percentile(
    bins: Bins, low: Tensor, high: Tensor, scheme: ActivationScheme
) -> tuple[Tensor, Tensor]:
    """The range that keeps the percentile of values: of |x| if symmetric, else towards each end."""
    bins = bins.absolute() if scheme.symmetric else bins
    total = int(bins.counts.sum())
    if total == 0:
        return low, high
    kept = max(1, ceil(total * Fraction(scheme.percentile) / 100))
    lower, upper = quantile_bounds(bins, kept=kept)
    if scheme.symmetric:
        lower = -upper
    # Edges of bins may lie beyond the values; ranges are exact.
    return low.clamp(min=lower), high.clamp(max=upper)


def _least_squares(
    bins: Bins, low: Tensor, high: Tensor, *, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """The range with the least squared error of int8 quantization over the histogram.

    1. Clip both ends at one magnitude: the best of a geometric grid that starts at MinMax.
    2. Refine it on ever finer grids; if asymmetric, move each end in turn instead.
    3. MinMax wins unless the result is better.
    """
    minmax = torch.cat([low.clamp(max=0.0), high.clamp(min=0.0)])
    largest = minmax.abs().amax()
    bins = _visible(bins, largest)
    if len(bins.counts) == 0:
        return low, high

    def best(ends_C2: Tensor) -> Tensor:
        lows, highs = ends_C2.unbind(1)
        lows, highs = torch.maximum(lows, minmax[0]), torch.minimum(highs, minmax[1])
        ends_C2 = torch.stack([lows, highs], dim=1)
        errors = _quantization_errors(bins, ends_C2, symmetric=symmetric)
        return ends_C2[int(errors.argmin())]  # the first of equals

    coarse = _ratios(-_STEPS_AN_OCTAVE, _OCTAVES * _STEPS_AN_OCTAVE, _STEPS_AN_OCTAVE)
    both = torch.tensor([-1.0, 1.0])
    ends = best(largest * both * coarse)  # 1
    for around in (coarse, *(_ratios(-4, 4, steps) for steps in _FINER_STEPS_AN_OCTAVE)):  # 2
        if symmetric:
            ends = best(ends.abs().amax() * both * around)
            continue
        for moved in (torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])) * 2:
            ends = best(ends * around.pow(moved))
    ends = best(torch.stack([minmax, ends]))  # 3
    return ends[:1], ends[1:]


def _ratios(first: int, last: int, steps_an_octave: int) -> Tensor:
    """float32 [last - first + 1, 1]: 2^(-k / steps_an_octave)."""
    return torch.exp2(torch.arange(first, last + 1) / -steps_an_octave).reshape(-1, 1)


def _visible(bins: Bins, largest: Tensor) -> Bins:
    """The bins whose values do not round to 0, at the same cost, in all ranges tried."""
    seen = bins.middle.abs() > largest * _NEGLIGIBLE
    return Bins(lower=bins.lower[seen], upper=bins.upper[seen], counts=bins.counts[seen])


def _quantization_errors(bins: Bins, ends_C2: Tensor, *, symmetric: bool) -> Tensor:
    """float32 [C]: the squared error of all values under each of C ranges.

    A bin within the range that is wider than a fraction of a step costs the mean of the squared
    rounding error over it: near the largest values a bin is as wide as a step, and one point of it
    says nothing. Narrower bins, and those beyond the range, count as their middle.
    """
    qmin, qmax = int_range(8)
    low_C1, high_C1 = ends_C2[:, :1], ends_C2[:, 1:]
    scale_C1, zero_C1 = scale_zero_point(low_C1, high_C1, bits=8, symmetric=symmetric)
    zero_C1 = torch.zeros_like(scale_C1) if zero_C1 is None else zero_C1.to(torch.float32)
    step_C1 = 1.0 / scale_C1
    middle_CB = bins.middle * step_C1
    code_CB = middle_CB.round().clamp_(qmin - zero_C1, qmax - zero_C1)
    point_CB = (middle_CB - code_CB).square_()
    half_CB = (bins.upper - bins.lower) * (step_C1 * 0.5)
    wide = (half_CB > 0.05) & (point_CB <= 0.25)
    spread_CB = _cubic(middle_CB + half_CB) - _cubic(middle_CB - half_CB)
    error_CB = torch.where(wide, spread_CB / (2.0 * half_CB), point_CB)
    return (error_CB @ bins.counts.to(torch.float32)) * scale_C1.squeeze(1).square()


def _cubic(t: Tensor) -> Tensor:
    """The integral from 0 to t of (x - round(x))^2."""
    whole = t.round()
    return whole / 12.0 + (t - whole).pow(3) / 3.0

"""Observers: from the statistics of a site to its int8 range."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import ActivationScheme
from quantfleet_worker.numerics import fake_quantize_static
from quantfleet_worker.observers import (
    _quantization_errors,
    activation_parameters,
    needed_statistics,
)
from quantfleet_worker.statistics.histogram import UniversalHistogram
from quantfleet_worker.statistics.ranges import ChannelRanges
from quantfleet_worker.statistics.reservoir import Reservoir, row_keys

Observer = Literal["MinMax", "Percentile", "MSE"]
SHAPES = ["normal", "heavy tails", "outlier", "one-sided", "shifted", "bfloat16", "two outliers"]


def rows_of(shape: str) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    X_NI = torch.randn(1024, 64, generator=generator)
    match shape:
        case "heavy tails":
            return X_NI * torch.exp(torch.randn(1024, 64, generator=generator) * 1.5)
        case "outlier":  # 2000 times the median of |x|
            X_NI[17, 3] = 2000 * 0.67
        case "two outliers":  # one side needs far more clipping than the other
            X_NI[17, 3], X_NI[600, 9] = -1300.0, 40.0
        case "one-sided":
            return X_NI.abs() ** 3
        case "shifted":
            return X_NI + 2.5
        case "bfloat16":
            return (X_NI**3).to(torch.bfloat16)
    return X_NI


def static(observer: Observer, symmetric: bool, percentile: str = "99.99") -> ActivationScheme:
    return ActivationScheme(
        kind="static", symmetric=symmetric, observer=observer, percentile=percentile
    )


def parameters(
    X_NI: Tensor, scheme: ActivationScheme, smoothing_I: Tensor | None = None, capacity: int = 1024
) -> tuple[Tensor, Tensor | None]:
    """What a site that has seen X_NI gets, from just the statistics that it asks for."""
    needed = needed_statistics(scheme, smoothing_I is not None)
    features = X_NI.shape[1]
    ranges, histogram = ChannelRanges(features), UniversalHistogram()
    reservoir = Reservoir(capacity, features)
    ranges.update(X_NI)
    histogram.update(X_NI)
    reservoir.update(X_NI, row_keys(0, len(X_NI)))
    return activation_parameters(
        scheme,
        ranges,
        histogram if "histogram" in needed else None,
        reservoir if "reservoir" in needed else None,
        smoothing_I,
    )


def squared_error(X_NI: Tensor, found: tuple[Tensor, Tensor | None]) -> float:
    X_NI = X_NI.to(torch.float32)
    difference = (X_NI - fake_quantize_static(X_NI, *found)).to(torch.float64)
    return float(difference.square().sum())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("smoothed", [True, False])
def test_minmax_is_the_formula_on_the_exact_range(symmetric: bool, smoothed: bool) -> None:
    X_NI = rows_of("shifted")
    factors_I = torch.linspace(0.1, 3.0, 64) if smoothed else None
    scale, zero = parameters(X_NI, static("MinMax", symmetric), factors_I)
    seen = X_NI if factors_I is None else X_NI / factors_I
    low, high = seen.amin().clamp(max=0), seen.amax()
    if symmetric:
        assert zero is None
        assert torch.equal(scale, (torch.maximum(-low, high) / 127.5).reshape(1))
    else:
        assert zero is not None
        assert torch.equal(scale, ((high - low) / 255).reshape(1))
        assert int(zero) == int((-128 - low / scale).round())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_mse_is_no_worse_than_minmax(shape: str, symmetric: bool) -> None:
    X_NI = rows_of(shape)
    least = squared_error(X_NI, parameters(X_NI, static("MSE", symmetric)))
    minmax = squared_error(X_NI, parameters(X_NI, static("MinMax", symmetric)))
    assert least <= minmax * 1.001


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_mse_is_near_the_best_range_there_is(shape: str, symmetric: bool) -> None:
    """Against a search over a fine grid of both ends on the raw values."""
    X_NI = rows_of(shape).to(torch.float32)[:640]
    low, high = float(X_NI.amin().clamp(max=0)), float(X_NI.amax())
    best = float("inf")
    for i in range(28 if not symmetric else 1):
        for k in range(56 if symmetric else 28):
            step = 0.2 if symmetric else 0.4
            a, b = low * 2 ** (-step * i), high * 2 ** (-step * k)
            a, b = (-max(-low, high) * 2 ** (-step * k),) * 2 if symmetric else (a, b)
            found = _range(a, abs(b) if symmetric else b, symmetric)
            best = min(best, squared_error(X_NI, found))
    mine = squared_error(X_NI, parameters(X_NI, static("MSE", symmetric)))
    assert mine <= best * 1.03


def _range(low: float, high: float, symmetric: bool) -> tuple[Tensor, Tensor | None]:
    if symmetric:
        return torch.tensor([high / 127.5]), None
    scale = max(high - low, 1e-30) / 255
    zero = max(-128, min(127, round(-128 - low / scale)))
    return torch.tensor([scale]), torch.tensor([zero], dtype=torch.int8)


def test_mse_gives_up_an_outlier_where_that_pays() -> None:
    generator = torch.Generator().manual_seed(0)
    X_NI = torch.randn(65536, 64, generator=generator)
    X_NI[5, 5] = 40.0
    for symmetric in (True, False):
        scale, _ = parameters(X_NI, static("MSE", symmetric), capacity=1)
        minmax, _ = parameters(X_NI, static("MinMax", symmetric), capacity=1)
        assert float(scale) < float(minmax) / 4


def test_mse_clips_one_end_where_only_that_pays() -> None:
    X_NI = 3 * torch.randn(65536, 64, generator=torch.Generator().manual_seed(1)).abs()
    X_NI[5, 5] = -40.0
    scale, zero = parameters(X_NI, static("MSE", False), capacity=1)
    assert float(scale) < float(X_NI.max()) / 255 * 1.02
    assert zero is not None
    assert int(zero) <= -125


@pytest.mark.parametrize("end", [1.0, 255 / 256, 0.7, 0.5])
def test_the_error_searched_is_that_of_the_values(end: float) -> None:
    """Also where the steps and the bins near the largest values are equally wide (255 / 256)."""
    X = torch.rand(200_000, generator=torch.Generator().manual_seed(2))
    histogram = UniversalHistogram()
    histogram.update(X)
    ends = torch.tensor([[0.0, end]])
    found = float(_quantization_errors(histogram.finite(), ends, symmetric=False))
    scale, zero = torch.tensor([end]) / 255, torch.tensor([-128], dtype=torch.int8)
    assert found == pytest.approx(squared_error(X.reshape(1, -1), (scale, zero)), rel=0.02)


@pytest.mark.parametrize("percentile", ["90", "99", "99.9", "99.99", "100"])
@pytest.mark.parametrize("shape", SHAPES)
def test_percentile_keeps_that_share_at_each_end(percentile: str, shape: str) -> None:
    X_NI = rows_of(shape)
    values = X_NI.to(torch.float32).reshape(-1)
    kept = -(-len(values) * int(float(percentile) * 1000) // 100_000)

    scale, zero = parameters(X_NI, static("Percentile", False, percentile))
    assert zero is not None
    ordered = values.sort().values
    low = min(0.0, float(ordered[len(values) - kept]))
    high = max(0.0, float(ordered[kept - 1]))
    assert float(scale) == pytest.approx((high - low) / 255, rel=1 / 127)
    assert float(scale) >= (high - low) / 255 * 0.9999999
    assert int(zero) == pytest.approx(-128 - low / float(scale), abs=1.6)

    scale, zero = parameters(X_NI, static("Percentile", True, percentile))
    assert zero is None
    edge = float(values.abs().sort().values[kept - 1])
    assert edge / 127.5 * 0.9999999 <= float(scale) <= edge / 127.5 * (1 + 1 / 127)
    if percentile == "100":
        assert torch.equal(scale, parameters(X_NI, static("MinMax", True))[0])


@pytest.mark.parametrize("observer", ["Percentile", "MSE"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_smoothed_ranges_are_those_of_the_divided_rows(observer: Observer, symmetric: bool) -> None:
    """With a reservoir that holds all rows, smoothing is the same as dividing the input."""
    X_NI = rows_of("heavy tails")
    factors_I = torch.logspace(-2, 2, 64)
    smoothed = parameters(X_NI, static(observer, symmetric, "99"), factors_I)
    divided = parameters(X_NI / factors_I, static(observer, symmetric, "99"))
    assert torch.equal(smoothed[0], divided[0])
    assert (smoothed[1] is None) == symmetric
    if smoothed[1] is not None:
        assert divided[1] is not None
        assert torch.equal(smoothed[1], divided[1])


@pytest.mark.parametrize("observer", ["MinMax", "Percentile", "MSE"])
def test_non_finite_and_dead_inputs(observer: Observer) -> None:
    X_NI = rows_of("normal")
    clean = parameters(X_NI[:, :60], static(observer, False))
    X_NI[:, 60:] = torch.tensor([torch.nan, torch.inf, -torch.inf, torch.nan])
    dirty = parameters(X_NI, static(observer, False))
    assert torch.equal(clean[0], dirty[0])

    scale, zero = parameters(torch.zeros(9, 3), static(observer, False))
    assert float(scale) == torch.finfo(torch.float32).eps
    assert zero is not None

    with pytest.raises(InvalidInput, match="finite activations"):
        parameters(torch.full((9, 3), torch.nan), static(observer, True))


def test_each_observer_asks_for_what_it_reads() -> None:
    dynamic = ActivationScheme(kind="dynamic", symmetric=True)
    assert needed_statistics(None, False) == ()
    assert needed_statistics(dynamic, False) == ()
    assert needed_statistics(dynamic, True) == ("ranges",)
    assert needed_statistics(static("MinMax", True), True) == ("ranges",)
    assert needed_statistics(static("MSE", True), False) == ("ranges", "histogram")
    assert needed_statistics(static("Percentile", True), True) == ("ranges", "reservoir")

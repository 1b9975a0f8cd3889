"""The universal-bin histogram against counting raw values with numpy."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantfleet_worker.statistics.histogram import UniversalHistogram, quantile_bounds

VALUES = st.lists(st.floats(width=32), max_size=60)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def histogram_of(*parts: Tensor) -> UniversalHistogram:
    histogram = UniversalHistogram.identity()
    for part in parts:
        histogram.update(part)
    return histogram


def patterns(values: Tensor) -> npt.NDArray[np.int64]:
    """The top 16 bits of each value's float32 form, by numpy."""
    return (values.to(torch.float32).numpy().view(np.uint32) >> 16).astype(np.int64)


@given(values=VALUES, dtype=st.sampled_from(DTYPES))
@settings(max_examples=60)
def test_counts_are_those_of_the_raw_values(values: list[float], dtype: torch.dtype) -> None:
    X = torch.tensor(values, dtype=torch.float32).to(dtype)
    raw = X.to(torch.float32).numpy()

    histogram = histogram_of(X)

    expected = np.bincount(patterns(X), minlength=1 << 16)
    assert np.array_equal(histogram.counts.numpy(), expected)
    tiny = np.abs(raw) < 2.0**-133  # below the smallest value with a bin of its own
    assert histogram.zeros == int(tiny.sum())
    # NaN is told from infinity by the bits that a bin keeps
    assert histogram.infinities + histogram.nans == int((~np.isfinite(raw)).sum())
    bins = histogram.finite()
    assert int(bins.counts.sum()) == int(np.isfinite(raw).sum())


def test_infinities_and_nans_are_counted_apart() -> None:
    X = torch.tensor([torch.inf, -torch.inf, torch.inf, torch.nan, -torch.nan, 1.0, 0.0, -0.0])
    histogram = histogram_of(X)
    assert (histogram.infinities, histogram.nans, histogram.zeros) == (3, 2, 2)
    assert histogram.finite().counts.tolist() == [2, 1]


@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
@settings(max_examples=60)
def test_bins_ascend_and_hold_their_values(values: list[float]) -> None:
    X = torch.tensor(values, dtype=torch.float32)
    bins = histogram_of(X).finite()
    assert bool((bins.upper[:-1] < bins.lower[1:]).all())
    held = (X >= bins.lower.reshape(-1, 1)) & (X <= bins.upper.reshape(-1, 1))
    tiny = X.abs() < 2.0**-133
    held |= tiny & (bins.upper == 0).reshape(-1, 1)
    assert torch.equal(held.sum(1), bins.counts)
    absolute, expected = bins.absolute(), histogram_of(X.abs()).finite()
    assert torch.equal(absolute.lower, expected.lower)
    assert torch.equal(absolute.upper, expected.upper)
    assert torch.equal(absolute.counts, expected.counts)


@given(values=VALUES, cut=st.integers(0, 60), dtype=st.sampled_from(DTYPES))
@settings(max_examples=30)
def test_merge_is_exact_and_commutes(values: list[float], cut: int, dtype: torch.dtype) -> None:
    X = torch.tensor(values, dtype=torch.float32).to(dtype)
    one, other, whole = histogram_of(X[:cut]), histogram_of(X[cut:]), histogram_of(X)
    assert torch.equal(one.merge(other).pack(), whole.pack())
    assert torch.equal(other.merge(one).pack(), whole.pack())
    assert torch.equal(whole.merge(UniversalHistogram.identity()).pack(), whole.pack())


def test_unpack_gives_back_what_was_packed() -> None:
    histogram = histogram_of(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    packed = histogram.pack()
    assert len(packed) == histogram.num_bytes == UniversalHistogram().num_bytes
    assert torch.equal(UniversalHistogram.unpack(packed).counts, histogram.counts)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_and_scattered_tensors_are_counted_whole(dtype: torch.dtype) -> None:
    X = torch.randn(700, 900, generator=torch.Generator().manual_seed(1)).to(dtype)
    view = X.T[::3]
    expected = np.bincount(patterns(view.contiguous()).reshape(-1), minlength=1 << 16)
    assert np.array_equal(histogram_of(view).counts.numpy(), expected)


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60),
    percentile=st.integers(1, 10000).map(lambda hundredths: Fraction(hundredths, 10000)),
)
def test_quantiles_are_the_outer_edges_around_the_exact_ones(
    values: list[float], percentile: Fraction
) -> None:
    X = torch.tensor(values, dtype=torch.float32)
    ordered = X.sort().values
    kept = max(1, -(-len(values) * percentile.numerator // percentile.denominator))
    lower, upper = quantile_bounds(histogram_of(X).finite(), kept=kept)
    for edge, exact in ((upper, ordered[kept - 1]), (-lower, -ordered[len(values) - kept])):
        if abs(float(exact)) >= 2.0**-126:
            assert edge >= float(exact)
            assert abs(edge - float(exact)) <= abs(float(exact)) / 127
        else:
            assert abs(edge) <= 2.0**-126

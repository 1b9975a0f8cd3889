"""Channel ranges: what numpy finds in the raw rows, for any split of them."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantfleet_worker.statistics.ranges import ChannelRanges

SPECIAL = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3e38, -3e38, 1e-45]


def rows_with(specials: list[tuple[int, float]], features: int = 5) -> Tensor:
    X_NI = torch.randn(24, features, generator=torch.Generator().manual_seed(0))
    for place, value in specials:
        X_NI.view(-1)[place % X_NI.numel()] = value
    return X_NI


def ranges_of(*parts: Tensor) -> ChannelRanges:
    ranges = ChannelRanges.identity(parts[0].shape[1])
    for part in parts:
        ranges.update(part)
    return ranges


def packed(ranges: ChannelRanges) -> list[int]:
    return ranges.pack().tolist()


specials = st.lists(st.tuples(st.integers(0, 119), st.sampled_from(SPECIAL)), max_size=40)


@given(specials=specials, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_ranges_are_those_of_the_finite_values(
    specials: list[tuple[int, float]], dtype: torch.dtype
) -> None:
    X_NI = rows_with(specials).to(dtype)
    raw = X_NI.to(torch.float32).numpy()
    finite = np.isfinite(raw)

    ranges = ranges_of(X_NI[:7], X_NI[7:7], X_NI[7:])

    assert ranges.rows == 24
    assert ranges.nonfinite == int((~finite).sum())
    assert np.array_equal(ranges.minimum.numpy(), np.where(finite, raw, np.inf).min(0))
    assert np.array_equal(ranges.maximum.numpy(), np.where(finite, raw, -np.inf).max(0))


@given(specials=specials, cuts=st.lists(st.integers(0, 24), max_size=6), seed=st.integers(0, 99))
def test_any_split_merged_in_any_order_gives_the_same_bytes(
    specials: list[tuple[int, float]], cuts: list[int], seed: int
) -> None:
    X_NI = rows_with(specials)
    bounds = [0, *sorted(cuts), 24]
    parts = [ranges_of(X_NI[a:b]) for a, b in itertools.pairwise(bounds)]
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(seed)).tolist()

    merged = ChannelRanges.identity(5)
    for index in order:
        merged = parts[index].merge(merged)

    assert packed(merged) == packed(ranges_of(X_NI))


@given(specials=specials)
@settings(max_examples=20)
def test_unpack_gives_back_what_was_packed(specials: list[tuple[int, float]]) -> None:
    ranges = ranges_of(rows_with(specials))
    again = ChannelRanges.unpack(ranges.pack(), features=5)
    assert len(ranges.pack()) == ranges.num_bytes == ChannelRanges(5).num_bytes
    assert packed(again) == packed(ranges)
    assert packed(again.merge(ChannelRanges.identity(5))) == packed(ranges)


def test_bounds_divided_by_factors_are_those_of_the_divided_rows() -> None:
    X_NI = rows_with([])
    factors_I = torch.tensor([0.3, 7.0, 1.0, 0.01, 3.3])
    low, high = ranges_of(X_NI).bounds(factors_I)
    assert torch.equal(low, (X_NI / factors_I).amin().reshape(1))
    assert torch.equal(high, (X_NI / factors_I).amax().reshape(1))


@pytest.mark.parametrize("layout", ["transposed", "every other column"])
def test_rows_need_not_lie_in_one_run(layout: str) -> None:
    X_NI = torch.randn(6, 10, generator=torch.Generator().manual_seed(3))
    view = X_NI.T if layout == "transposed" else X_NI[:, ::2]
    assert packed(ranges_of(view)) == packed(ranges_of(view.contiguous()))


def test_which_zero_came_first_does_not_show() -> None:
    signs = torch.randn(50, 40, generator=torch.Generator().manual_seed(4)).sign()
    zeros = torch.zeros(50, 40) * signs
    expected = packed(ranges_of(zeros.abs()))
    assert packed(ranges_of(zeros)) == expected
    assert packed(ranges_of(zeros.flip(0))) == expected
    assert packed(ranges_of(zeros[:1]).merge(ranges_of(zeros[1:]))) == expected

"""SmoothQuant's factors and what they do to the statistics."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_worker.methods import smoothquant

ANY = st.floats(width=32)


def test_factors_follow_the_papers_formula() -> None:
    low, high = torch.tensor([-8.0, -1.0, 0.0]), torch.tensor([2.0, 4.0, 16.0])
    weight = torch.tensor([0.5, 1.0, 4.0])
    s_I = smoothquant.smoothing_factors(low, high, weight, alpha=0.5)
    assert s_I.tolist() == pytest.approx([4.0, 2.0, 2.0])
    s_I = smoothquant.smoothing_factors(low, high, weight, alpha=0.75)
    assert s_I.tolist() == pytest.approx([8**0.75 / 0.5**0.25, 4**0.75, 16**0.75 / 4**0.25])


@given(
    channels=st.lists(st.tuples(ANY, ANY, ANY), min_size=4, max_size=4),
    alpha=st.floats(0, 1),
)
def test_factors_are_always_finite_and_positive(
    channels: list[tuple[float, float, float]], alpha: float
) -> None:
    low, high, weight = torch.tensor(channels, dtype=torch.float32).unbind(1)
    s_I = smoothquant.smoothing_factors(low, high, weight, alpha=alpha)
    s_group, s_rows = smoothquant.grouped_smoothing_factors(
        low, high, weight, alpha=alpha, heads_per_group=2, head_dim=1
    )
    assert s_I.shape == s_group.shape == (4,)
    assert s_rows.shape == (2,)
    for s in (s_I, s_group, s_rows):
        assert s.dtype == torch.float32
        assert bool(((s >= 1e-4) & (s <= 1e4)).all())


@pytest.mark.parametrize(
    ("low", "high", "weight"),
    [(0.0, 0.0, 1.0), (-1.0, 1.0, 0.0), (torch.inf, -torch.inf, 1.0), (-1.0, 1.0, torch.nan)],
    ids=["dead input", "dead weight", "unseen", "bad weight"],
)
def test_a_channel_with_nothing_to_balance_keeps_its_size(
    low: float, high: float, weight: float
) -> None:
    s_I = smoothquant.smoothing_factors(
        torch.tensor([low, -4.0]), torch.tensor([high, 4.0]), torch.tensor([weight, 1.0]), alpha=0.5
    )
    assert s_I.tolist() == [1.0, 2.0]


def test_query_heads_that_share_a_kv_head_share_factors() -> None:
    """4 query heads of 3 channels, 2 kv heads: heads 0, 1 read kv head 0 and 2, 3 read 1."""
    generator = torch.Generator().manual_seed(0)
    act, weight = torch.rand(2, 12, generator=generator).unbind(0)
    s_I, s_rows = smoothquant.grouped_smoothing_factors(
        -act, act / 2, weight, alpha=0.5, heads_per_group=2, head_dim=3
    )
    for channel in range(12):
        head, lane = divmod(channel, 3)
        twin = (head ^ 1) * 3 + lane
        row = (head // 2) * 3 + lane
        expected = (max(act[channel], act[twin]) / max(weight[channel], weight[twin])) ** 0.5
        assert float(s_I[channel]) == pytest.approx(float(expected), rel=1e-6)
        assert s_I[channel] == s_I[twin] == s_rows[row]


def test_one_query_head_a_kv_head_is_plain_smoothing() -> None:
    act, weight = torch.rand(2, 12, generator=torch.Generator().manual_seed(1)).unbind(0)
    plain = smoothquant.smoothing_factors(-act, act, weight, alpha=0.3)
    s_I, s_rows = smoothquant.grouped_smoothing_factors(
        -act, act, weight, alpha=0.3, heads_per_group=1, head_dim=4
    )
    assert torch.equal(s_I, plain)
    assert torch.equal(s_rows, plain)


def test_an_unseen_head_takes_the_factors_of_its_group() -> None:
    low = torch.tensor([-4.0, torch.inf])
    high = torch.tensor([4.0, -torch.inf])
    s_I, s_rows = smoothquant.grouped_smoothing_factors(
        low, high, torch.tensor([1.0, 1.0]), alpha=0.5, heads_per_group=2, head_dim=1
    )
    assert s_I.tolist() == [2.0, 2.0]
    assert s_rows.tolist() == [2.0]


def test_the_smoothed_second_moment_is_that_of_the_divided_rows() -> None:
    generator = torch.Generator().manual_seed(2)
    X_NI = torch.randn(200, 40, generator=generator)
    s_I = torch.exp(torch.randn(40, generator=generator) * 2)
    H_II = X_NI.T @ X_NI
    H_II = H_II.triu() + H_II.triu(1).T
    smoothed = smoothquant.smooth_second_moment(H_II, s_I)
    divided = (X_NI / s_I).to(torch.float64)
    expected = divided.T @ divided
    scale = expected.diagonal().sqrt()
    assert torch.equal(smoothed, smoothed.T)
    assert float(((smoothed - expected) / torch.outer(scale, scale)).abs().max()) < 1e-6

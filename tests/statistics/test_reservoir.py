"""The reservoir: the same rows whatever the split, order and hints."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantfleet_worker.statistics.reservoir import Reservoir, packed_bytes, row_keys, threshold

FEATURES = 3


def sample_rows(lengths: list[int], bad: set[int]) -> list[tuple[Tensor, Tensor]]:
    """(rows, keys) of each sample; rows number `bad` hold a NaN or an infinity."""
    found, position = [], 0
    for sample, length in enumerate(lengths):
        first = torch.arange(position, position + length, dtype=torch.float32).reshape(-1, 1)
        X_NI = first + torch.arange(FEATURES) / 10
        for row in range(length):
            if position + row in bad:
                X_NI[row, row % FEATURES] = torch.nan if row % 2 else torch.inf
        found.append((X_NI, row_keys(sample, length)))
        position += length
    return found


def expected(parts: list[tuple[Tensor, Tensor]], capacity: int) -> tuple[Tensor, Tensor]:
    """By definition: sort all finite rows by key, keep the first."""
    rows, keys = (torch.cat(column) for column in zip(*parts, strict=True))
    finite = torch.isfinite(rows).all(1)
    rows, keys = rows[finite], keys[finite]
    order = keys.argsort()[:capacity]
    return keys[order], rows[order]


lengths = st.lists(st.integers(0, 20), min_size=1, max_size=8)


@given(
    lengths=lengths,
    capacity=st.integers(1, 40),
    ranks=st.integers(1, 5),
    seed=st.integers(0, 99),
    bad=st.sets(st.integers(0, 160), max_size=20),
)
@settings(max_examples=60)
def test_any_split_in_any_order_keeps_the_same_rows(
    lengths: list[int], capacity: int, ranks: int, seed: int, bad: set[int]
) -> None:
    parts = sample_rows(lengths, bad)
    generator = torch.Generator().manual_seed(seed)
    reservoirs = [Reservoir.identity(capacity, FEATURES) for _ in range(ranks)]
    for index in torch.randperm(len(parts), generator=generator).tolist():
        rank = int(torch.randint(ranks, (), generator=generator))
        X_NI, keys_N = parts[index]
        order = torch.randperm(len(keys_N), generator=generator)
        reservoirs[rank].update(X_NI[order], keys_N[order])

    merged = reservoirs[0]
    for other in reservoirs[1:]:
        merged = other.merge(merged)

    keys, rows = expected(parts, capacity)
    assert torch.equal(merged.keys, keys)
    assert torch.equal(merged.rows, rows)


@given(lengths=lengths, capacity=st.integers(1, 40))
@settings(max_examples=40)
def test_rows_above_the_threshold_can_be_left_out(lengths: list[int], capacity: int) -> None:
    parts = sample_rows(lengths, set())
    highest = threshold(list(enumerate(lengths)), capacity)
    hinted = Reservoir(capacity, FEATURES, limit=highest)
    chosen = Reservoir(capacity, FEATURES)
    for X_NI, keys_N in parts:
        hinted.update(X_NI, keys_N)
        chosen.update(X_NI[keys_N <= highest], keys_N[keys_N <= highest])
    keys, rows = expected(parts, capacity)
    for reservoir in (hinted, chosen):
        assert torch.equal(reservoir.keys, keys)
        assert torch.equal(reservoir.rows, rows)
    assert sum(int((keys_N <= highest).sum()) for _, keys_N in parts) == len(keys)


def test_the_threshold_of_many_samples_is_that_of_all_their_keys() -> None:
    many = [(sample, sample % 7) for sample in range(700)]
    keys = torch.cat([row_keys(sample, length) for sample, length in many]).sort().values
    assert threshold(many, 100) == int(keys[99])


@given(lengths=lengths, capacity=st.integers(1, 40), spare=st.integers(0, 3))
@settings(max_examples=30)
def test_unpack_gives_back_what_was_packed(lengths: list[int], capacity: int, spare: int) -> None:
    reservoir = Reservoir(capacity, FEATURES)
    for X_NI, keys_N in sample_rows(lengths, set()):
        reservoir.update(X_NI, keys_N)
    places = len(reservoir.keys) + spare
    packed = reservoir.pack(places)
    again = Reservoir.unpack(packed, places=places, capacity=capacity, features=FEATURES)
    assert len(packed) == packed_bytes(places, FEATURES)
    assert torch.equal(again.keys, reservoir.keys)
    assert torch.equal(again.rows, reservoir.rows)
    merged = again.merge(Reservoir.identity(capacity, FEATURES))
    assert torch.equal(merged.pack(places), packed)


def test_keys_are_splitmix64_of_sample_and_position() -> None:
    def splitmix64(state: int) -> int:
        mask = (1 << 64) - 1
        z = (state + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    for sample in (0, 1, 77, (1 << 31) - 1):
        unsigned = [key % (1 << 64) for key in row_keys(sample, 5).tolist()]
        assert unsigned == [splitmix64((sample << 32) + position) for position in range(5)]


def test_keys_never_tie_and_spread_evenly() -> None:
    keys = torch.cat([row_keys(sample, 1000) for sample in range(200)])
    assert len(torch.unique(keys)) == len(keys)
    eighths = torch.bincount((keys >> 61) + 4, minlength=8)
    assert int((eighths - 25_000).abs().max()) < 750  # five standard deviations


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_are_kept_as_float32(dtype: torch.dtype) -> None:
    X_NI = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(0)).to(dtype)
    reservoir = Reservoir(4, FEATURES)
    reservoir.update(X_NI, row_keys(0, 4))
    assert reservoir.rows.dtype == torch.float32
    assert torch.equal(reservoir.rows, X_NI.to(torch.float32)[row_keys(0, 4).argsort()])

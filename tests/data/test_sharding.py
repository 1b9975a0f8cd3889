"""Leaves cover the micro-batches, ranks cover the leaves, and no rank is longer than it must be."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_worker.data import leaves, shard

tokens = st.lists(st.integers(0, 50), max_size=9)


@given(st.integers(0, 2000), st.integers(1, 300))
def test_leaves_are_contiguous_even_and_never_empty(num_micro_batches: int, most: int) -> None:
    found = leaves(num_micro_batches, most)
    assert len(found) == min(num_micro_batches, most)
    assert [i for start, end in found for i in range(start, end)] == list(range(num_micro_batches))
    sizes = {end - start for start, end in found}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert 0 not in sizes


@given(tokens, st.integers(1, 12))
def test_each_leaf_goes_to_one_rank_in_order(leaf_tokens: list[int], world_size: int) -> None:
    ranges = shard(leaf_tokens, world_size)
    assert len(ranges) == world_size
    assert [i for start, end in ranges for i in range(start, end)] == list(range(len(leaf_tokens)))
    assert all(end == start for (_, end), (start, _) in pairwise(ranges))


@given(tokens, st.integers(1, 12))
def test_no_rank_is_idle_while_another_has_two_leaves(
    leaf_tokens: list[int], world_size: int
) -> None:
    sizes = [end - start for start, end in shard(leaf_tokens, world_size)]
    assert sizes.count(0) == max(0, world_size - len(leaf_tokens))
    assert 0 not in sizes[: len(leaf_tokens)]


@given(tokens, st.integers(1, 5))
def test_the_longest_rank_is_as_short_as_any_split_makes_it(
    leaf_tokens: list[int], world_size: int
) -> None:
    ranges = shard(leaf_tokens, world_size)
    num_leaves = len(leaf_tokens)
    cuts = combinations(sorted([*range(num_leaves + 1)] * (world_size - 1)), world_size - 1)
    best = min(
        max(sum(leaf_tokens[a:b]) for a, b in pairwise((0, *cut, num_leaves))) for cut in set(cuts)
    )
    assert max(sum(leaf_tokens[start:end]) for start, end in ranges) == best


@pytest.mark.parametrize(
    ("leaf_tokens", "world_size", "expected"),
    [
        ([256] * 10, 3, ((0, 4), (4, 8), (8, 10))),
        ([900, 100, 100, 100], 2, ((0, 1), (1, 4))),
        ([100, 100, 100, 900], 2, ((0, 3), (3, 4))),
        ([5, 5, 5], 5, ((0, 1), (1, 2), (2, 3), (3, 3), (3, 3))),
        ([], 2, ((0, 0), (0, 0))),
    ],
)
def test_ranges_of_known_cases(
    leaf_tokens: list[int], world_size: int, expected: tuple[tuple[int, int], ...]
) -> None:
    assert shard(leaf_tokens, world_size) == expected

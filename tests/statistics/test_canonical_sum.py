"""The canonical tree: one order of addition for any number of ranks."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantfleet_worker.statistics.tree import CanonicalSum, parked_nodes


def leaf_values(num_leaves: int) -> list[Tensor]:
    """Values of very different size: every change of order changes some sum."""
    generator = torch.Generator().manual_seed(num_leaves)
    sizes = torch.exp2(torch.randint(-12, 12, (num_leaves, 1), generator=generator))
    return list(torch.randn(num_leaves, 16, generator=generator) * sizes)


def by_definition(values: Sequence[Tensor]) -> Tensor:
    """Level by level over all leaves; a last node without partner passes up."""
    level = list(values)
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def rank_sum(values: Sequence[Tensor], start: int, stop: int) -> CanonicalSum:
    total = CanonicalSum(len(values))
    for leaf in range(start, stop):
        total.add(leaf, values[leaf].clone())
    return total


def even_bounds(num_leaves: int, ranks: int) -> list[tuple[int, int]]:
    return [(num_leaves * r // ranks, num_leaves * (r + 1) // ranks) for r in range(ranks)]


@pytest.mark.parametrize("num_leaves", [1, 2, 3, *range(7, 129)])
def test_one_to_eleven_ranks_give_the_same_bits(num_leaves: int) -> None:
    values = leaf_values(num_leaves)
    expected = by_definition(values)
    for ranks in range(1, 12):
        total = CanonicalSum.identity(num_leaves)
        for start, stop in even_bounds(num_leaves, ranks):
            part = rank_sum(values, start, stop)
            assert tuple(sorted(part.nodes)) == tuple(sorted(parked_nodes(start, stop, num_leaves)))
            for key, value in part.nodes.items():
                total.add_node(key, value)
        assert torch.equal(total.root(), expected)


def test_ranks_that_add_up_their_own_leaves_differ() -> None:
    """What the tree is for: without it, the number of ranks shows in the last bits."""
    values = leaf_values(100)
    one = torch.stack(values).cumsum(0)[-1]
    partial = [torch.stack(values[a:b]).cumsum(0)[-1] for a, b in even_bounds(100, 7)]
    assert not torch.equal(torch.stack(partial).cumsum(0)[-1], one)


@given(
    num_leaves=st.integers(1, 128),
    cuts=st.lists(st.floats(0, 1), max_size=10),
    seed=st.integers(0, 999),
)
@settings(max_examples=80)
def test_any_ranges_merged_in_any_order_give_the_same_bits(
    num_leaves: int, cuts: list[float], seed: int
) -> None:
    values = leaf_values(num_leaves)
    bounds = [0, *sorted(int(cut * num_leaves) for cut in cuts), num_leaves]
    parts = [rank_sum(values, a, b) for a, b in itertools.pairwise(bounds)]
    before = [{key: value.clone() for key, value in part.nodes.items()} for part in parts]
    generator = torch.Generator().manual_seed(seed)
    pool = list(parts)
    while len(pool) > 1:  # a random tree of merges: associative and commutative
        one = pool.pop(int(torch.randint(len(pool), (), generator=generator)))
        other = pool.pop(int(torch.randint(len(pool), (), generator=generator)))
        pool.append(one.merge(other))

    assert pool[0].complete
    assert torch.equal(pool[0].root(), by_definition(values))
    for part, nodes in zip(parts, before, strict=True):  # merge leaves its operands alone
        assert part.nodes.keys() == nodes.keys()
        assert all(torch.equal(part.nodes[key], nodes[key]) for key in nodes)


@given(num_leaves=st.integers(1, 128), ends=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_parked_nodes_are_few_and_known_from_the_range(
    num_leaves: int, ends: tuple[float, float]
) -> None:
    start, stop = sorted(int(end * num_leaves) for end in ends)
    total = rank_sum([torch.zeros(1)] * num_leaves, start, stop)
    nodes = parked_nodes(start, stop, num_leaves)
    assert set(nodes) == set(total.nodes)
    assert len(nodes) == len(set(nodes)) <= 2 * num_leaves.bit_length()
    firsts = [index << level for level, index in nodes]
    assert firsts == sorted(firsts)


def test_leaves_may_come_in_any_order() -> None:
    values = leaf_values(37)
    total = CanonicalSum(37)
    for leaf in torch.randperm(37, generator=torch.Generator().manual_seed(0)).tolist():
        total.add(leaf, values[leaf].clone())
    assert torch.equal(total.root(), by_definition(values))


def test_a_leaf_counts_once_and_a_root_needs_all() -> None:
    total = rank_sum(leaf_values(5), 0, 3)
    with pytest.raises(AssertionError, match="missing"):
        total.root()
    with pytest.raises(AssertionError, match="twice"):
        total.add(2, torch.zeros(16))
    with pytest.raises(AssertionError, match="outside"):
        total.add(5, torch.zeros(16))

"""The second moment: bit for bit the same for any split, through the wire or not."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantfleet_worker.statistics.second_moment import SecondMoment, node_bytes, packed_bytes
from quantfleet_worker.statistics.tree import parked_nodes


def leaves_of(num_leaves: int, features: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """One tensor of 0 to 9 rows a leaf, of very different sizes."""
    generator = torch.Generator().manual_seed(num_leaves * 1000 + features)
    found = []
    for leaf in range(num_leaves):
        X_NI = torch.randn(leaf * 7 % 10, features, generator=generator)
        found.append((X_NI * torch.exp2(torch.tensor(leaf % 11 - 5.0))).to(dtype))
    return found


def collected(leaves: list[Tensor], start: int, stop: int) -> SecondMoment:
    moment = SecondMoment.identity(leaves[0].shape[1], len(leaves))
    for leaf in range(start, stop):
        for micro_batch in leaves[leaf].split(4):
            moment.update(leaf, micro_batch)
        moment.finish_leaf()
    return moment


def by_float64(leaves: list[Tensor]) -> Tensor:
    X_NI = torch.cat(leaves).to(torch.float64)
    return X_NI.T @ X_NI


@pytest.mark.parametrize("features", [1, 7, 33, 200, 400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_the_sum_of_outer_products(features: int, dtype: torch.dtype) -> None:
    leaves = leaves_of(9, features, dtype)
    moment = collected(leaves, 0, 9)
    H_II = moment.root()
    assert H_II.dtype == torch.float32
    assert torch.equal(H_II, H_II.T)
    expected = by_float64(leaves)
    scale = expected.diagonal().sqrt()
    relative = (H_II.to(torch.float64) - expected) / torch.outer(scale, scale)
    assert float(relative.abs().max()) < 1e-6
    assert moment.rows == sum(len(leaf) for leaf in leaves)
    assert moment.nonfinite_rows == 0


@given(
    num_leaves=st.integers(1, 40),
    features=st.sampled_from([1, 5, 16, 211]),
    cuts=st.lists(st.floats(0, 1), max_size=10),
    travels=st.booleans(),
)
@settings(max_examples=40)
def test_any_split_gives_the_same_bits(
    num_leaves: int, features: int, cuts: list[float], travels: bool
) -> None:
    leaves = leaves_of(num_leaves, features)
    bounds = [0, *sorted(int(cut * num_leaves) for cut in cuts), num_leaves]
    merged = SecondMoment.identity(features, num_leaves)
    for start, stop in itertools.pairwise(bounds):
        part = collected(leaves, start, stop)
        if travels:
            packed = part.pack()
            assert len(packed) == packed_bytes(features, num_leaves, start, stop)
            part = SecondMoment.unpack(
                packed, features=features, num_leaves=num_leaves, start=start, stop=stop
            )
        merged = part.merge(merged)
    alone = collected(leaves, 0, num_leaves)
    assert torch.equal(merged.root(), alone.root())
    assert (merged.rows, merged.nonfinite_rows) == (alone.rows, alone.nonfinite_rows)


@pytest.mark.parametrize("features", [1, 2, 7, 64, 193, 401])
def test_a_node_is_a_triangle_on_the_wire_and_symmetric_again(features: int) -> None:
    leaves = leaves_of(6, features)
    sender, owner = collected(leaves, 1, 6), collected(leaves, 0, 1)
    assert sender.nodes == parked_nodes(1, 6, 6)
    for key in sender.nodes:
        packed = sender.pack_node(key)
        assert len(packed) == node_bytes(features) == 4 * features * (features + 1) // 2
        owner.add_packed_node(key, packed)
    assert torch.equal(owner.root(), collected(leaves, 0, 6).root())
    sender.pack_node(sender.nodes[0]).zero_()  # the owner's copy is its own
    assert torch.equal(owner.root(), collected(leaves, 0, 6).root())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_rows_without_a_finite_norm_are_left_out_and_counted(bad: float) -> None:
    leaves = leaves_of(4, 5)
    clean = collected(leaves, 0, 4)
    spoiled = torch.zeros(2, 5)
    spoiled[:, 3] = bad
    leaves[2] = torch.cat([spoiled, leaves[2]])
    again = SecondMoment(5, 4)
    for leaf, X_NI in enumerate(leaves):
        first = 2 if leaf == 2 else 0
        if first:
            again.update(leaf, X_NI[:first])
        for micro_batch in X_NI[first:].split(4):
            again.update(leaf, micro_batch)
        again.finish_leaf()
    assert torch.equal(again.root(), clean.root())
    assert again.nonfinite_rows == 2
    assert again.rows == clean.rows


def test_leaves_without_rows_count_as_zeros() -> None:
    moment = SecondMoment(3, 2)
    for leaf in range(2):
        moment.update(leaf, torch.empty(0, 3))
        moment.finish_leaf()
    assert torch.equal(moment.root(), torch.zeros(3, 3))
    assert moment.rows == 0


def test_a_leaf_must_be_finished_before_the_next() -> None:
    moment = SecondMoment(3, 2)
    moment.update(0, torch.ones(1, 3))
    with pytest.raises(AssertionError, match="not finished"):
        moment.update(1, torch.ones(1, 3))
    with pytest.raises(AssertionError, match="not finished"):
        moment.pack()

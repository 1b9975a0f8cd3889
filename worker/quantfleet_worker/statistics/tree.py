"""Float sums in one fixed order: a binary tree over absolute leaf indices.

Float addition is not associative, so a sum that must not depend on the number of ranks needs its
order fixed by the data. Level 0 holds the leaves; node (l, i) is the sum of (l - 1, 2i) and
(l - 1, 2i + 1), in that order; where the right child does not exist the left one passes up
unchanged. A rank folds what it can of its leaves, parks the rest, and whoever receives the parked
nodes of all ranks ends with the same root, bit for bit.
"""

from collections.abc import Mapping

from torch import Tensor

Key = tuple[int, int]
"""(level, index at that level)."""


def parked_nodes(start: int, stop: int, num_leaves: int) -> tuple[Key, ...]:
    """The nodes that are left after adding leaves start..stop-1, in ascending order of leaves."""
    nodes: set[Key] = set()
    for leaf in range(start, stop):
        key = _risen((0, leaf), num_leaves)
        while (sibling := (key[0], key[1] ^ 1)) in nodes:
            nodes.remove(sibling)
            key = _risen((key[0] + 1, key[1] >> 1), num_leaves)
        nodes.add(key)
    return tuple(sorted(nodes, key=lambda key: key[1] << key[0]))


class CanonicalSum:
    """The parked nodes of a sum over `num_leaves` leaves.

    `add` takes the value for its own: it may be added to in place.
    """

    def __init__(self, num_leaves: int, nodes: Mapping[Key, Tensor] | None = None) -> None:
        self.num_leaves = num_leaves
        self.nodes: dict[Key, Tensor] = dict(nodes or {})

    @classmethod
    def identity(cls, num_leaves: int) -> "CanonicalSum":
        """The sum of no leaves."""
        return cls(num_leaves)

    def add(self, leaf: int, value: Tensor) -> None:
        """Add leaf number `leaf`, once."""
        self.add_node((0, leaf), value)

    def add_node(self, key: Key, value: Tensor) -> None:
        """Add a node that another rank parked."""
        self._insert(key, value, in_place=True)

    def merge(self, other: "CanonicalSum") -> "CanonicalSum":
        """The sum of both sets of leaves, which share none; both stay as they are."""
        assert self.num_leaves == other.num_leaves
        merged = CanonicalSum(self.num_leaves, self.nodes)
        for key, value in other.nodes.items():
            merged._insert(key, value, in_place=False)
        return merged

    @property
    def complete(self) -> bool:
        """Whether all leaves are in."""
        return list(self.nodes) == [_root(self.num_leaves)]

    def root(self) -> Tensor:
        """The sum of all leaves."""
        assert self.complete, f"leaves are missing: only {sorted(self.nodes)} are there"
        return self.nodes[_root(self.num_leaves)]

    def _insert(self, key: Key, value: Tensor, *, in_place: bool) -> None:
        key = _risen(key, self.num_leaves)
        while (sibling := self.nodes.pop((key[0], key[1] ^ 1), None)) is not None:
            left, right = (sibling, value) if key[1] & 1 else (value, sibling)
            value = left.add_(right) if in_place else left + right
            key = _risen((key[0] + 1, key[1] >> 1), self.num_leaves)
        assert key not in self.nodes, f"node {key} was added twice"
        self.nodes[key] = value


def _risen(key: Key, num_leaves: int) -> Key:
    """Where a node ends up: as long as it is the right edge without partner, one level up."""
    level, index = key
    width = ((num_leaves - 1) >> level) + 1
    assert 0 <= index < width, f"node {key} is outside a tree of {num_leaves} leaves"
    while width > 1 and index % 2 == 0 and index == width - 1:
        level, index, width = level + 1, index >> 1, (width + 1) >> 1
    return level, index


def _root(num_leaves: int) -> Key:
    return (num_leaves - 1).bit_length(), 0

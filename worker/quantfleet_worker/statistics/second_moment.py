"""H = sum of x x^T over the rows of a site: all that weight methods need to know of the data.

Only the upper triangle is computed, kept, sent and summed, so H is symmetric to the last bit and
the same whether it travelled or not.
"""

import torch
from torch import Tensor

from quantfleet_worker.statistics import packing
from quantfleet_worker.statistics.tree import CanonicalSum, Key, parked_nodes

_BLOCK = 192  # rows of H a product; the triangle of blocks costs little over half the square


def node_bytes(features: int) -> int:
    """Bytes of one packed node: the upper triangle [I * (I + 1) / 2] in float32."""
    return 4 * (features * (features + 1) // 2)


def packed_bytes(features: int, num_leaves: int, start: int, stop: int) -> int:
    """Bytes of `SecondMoment.pack` after leaves start..stop-1."""
    return 16 + len(parked_nodes(start, stop, num_leaves)) * node_bytes(features)


class SecondMoment:
    """The parked nodes of H [I, I], as upper triangles in host memory, row by row.

    rows: rows that count. nonfinite_rows: rows left out because their squared norm is not finite.
    """

    def __init__(self, features: int, num_leaves: int) -> None:
        self.features = features
        self.tree = CanonicalSum(num_leaves)
        self.rows = 0
        self.nonfinite_rows = 0
        self._leaf: int | None = None
        self._current: Tensor | None = None  # [I, I] on the rows' device, only its upper blocks

    @classmethod
    def identity(cls, features: int, num_leaves: int) -> "SecondMoment":
        """The second moment of no rows."""
        return cls(features, num_leaves)

    def update(self, leaf: int, X_NI: Tensor) -> None:
        """Add N >= 0 rows of any floating dtype to the leaf, which is open until finished."""
        assert self._leaf in (None, leaf), f"leaf {self._leaf} is not finished"
        X_NI = X_NI.detach().to(torch.float32)
        if self._current is None:
            self._leaf = leaf
            self._current = X_NI.new_zeros(self.features, self.features)
        finite = torch.isfinite(torch.linalg.vector_norm(X_NI, dim=1))
        if not bool(finite.all()):
            self.nonfinite_rows += int((~finite).sum())
            X_NI = X_NI[finite]
        self.rows += X_NI.shape[0]
        for start in range(0, self.features, _BLOCK):
            stop = start + _BLOCK
            self._current[start:stop, start:].addmm_(X_NI[:, start:stop].T, X_NI[:, start:])

    def finish_leaf(self) -> None:
        """Park the open leaf."""
        assert self._leaf is not None, "no leaf is open"
        assert self._current is not None
        self.tree.add(self._leaf, _upper_triangle(self._current).cpu())
        self._leaf, self._current = None, None

    def merge(self, other: "SecondMoment") -> "SecondMoment":
        """The second moment of both sets of leaves, which share none."""
        merged = SecondMoment(self.features, self.tree.num_leaves)
        merged.tree = self.tree.merge(other.tree)
        merged.rows = self.rows + other.rows
        merged.nonfinite_rows = self.nonfinite_rows + other.nonfinite_rows
        return merged

    def root(self) -> Tensor:
        """H_II, float32, symmetric, once all leaves are in."""
        return _symmetric(self.tree.root(), self.features)

    @property
    def nodes(self) -> tuple[Key, ...]:
        """The keys of the parked nodes in ascending order of leaves (see `parked_nodes`)."""
        return tuple(sorted(self.tree.nodes, key=lambda key: key[1] << key[0]))

    def pack_node(self, key: Key) -> Tensor:
        """uint8 [node_bytes]: a view of the node, no copy."""
        return packing.as_bytes(self.tree.nodes[key])

    def add_packed_node(self, key: Key, packed: Tensor) -> None:
        """Take in a node that another rank parked; the bytes are copied."""
        shape = (self.features * (self.features + 1) // 2,)
        self.tree.add_node(key, packing.from_bytes(packed, torch.float32, shape))

    def pack(self) -> Tensor:
        """uint8 [packed_bytes]: rows, nonfinite_rows (int64), then the nodes in order of leaves."""
        assert self._leaf is None, f"leaf {self._leaf} is not finished"
        nodes = [self.tree.nodes[key] for key in self.nodes]
        return packing.pack((self.rows, self.nonfinite_rows), nodes)

    @classmethod
    def unpack(
        cls, packed: Tensor, *, features: int, num_leaves: int, start: int, stop: int
    ) -> "SecondMoment":
        """The value that `pack` gave after leaves start..stop-1."""
        moment = cls(features, num_leaves)
        (moment.rows, moment.nonfinite_rows), rest = packing.unpack_counts(packed, 2)
        size = node_bytes(features)
        for i, key in enumerate(parked_nodes(start, stop, num_leaves)):
            moment.add_packed_node(key, rest[i * size : (i + 1) * size])
        return moment


def _upper_triangle(H_II: Tensor) -> Tensor:
    """[I * (I + 1) / 2]: the rows of the upper triangle one after the other."""
    return torch.cat([row[i:] for i, row in enumerate(H_II.unbind(0))])


def _symmetric(triangle: Tensor, features: int) -> Tensor:
    H_II = triangle.new_zeros(features, features)
    start = 0
    for i in range(features):
        H_II[i, i:] = triangle[start : start + features - i]
        start += features - i
    for i in range(0, features, _BLOCK):
        rows = slice(i, i + _BLOCK)
        H_II[rows, rows] += H_II[rows, rows].triu(1).T
        for j in range(i + _BLOCK, features, _BLOCK):
            H_II[j : j + _BLOCK, rows] = H_II[rows, j : j + _BLOCK].T
    return H_II

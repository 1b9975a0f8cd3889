"""Raw rows of a site's input, chosen by a hash of where they come from.

Whether a row is kept depends on its sample and position alone, so the reservoirs of any split of
the data merge into the one reservoir of all of it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from quantfleet_worker.statistics import packing

_EMPTY = torch.iinfo(torch.int64).max
_SORTED_AT_ONCE = 256  # samples


def row_keys(sample: int, length: int) -> Tensor:
    """int64 [length]: a hash of (sample, position) for each position of a sample.

    The finalizer of splitmix64 (Steele, Lea, Flood 2014) maps 64-bit numbers one to one, so two
    rows never share a key while samples are below 2^31 and positions below 2^32.
    """
    assert 0 <= sample < 1 << 31
    z = torch.arange(length, dtype=torch.int64) + (sample << 32)
    z = z + _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def threshold(lengths_by_sample: Sequence[tuple[int, int]], capacity: int) -> int:
    """The largest key that a reservoir of all these (sample, length) can keep.

    A caller that knows the lengths before it has the rows can leave out all rows above it.
    """
    pending = [torch.empty(0, dtype=torch.int64)]
    for sample, length in lengths_by_sample:
        pending.append(row_keys(sample, length))
        if len(pending) == _SORTED_AT_ONCE:
            pending = [torch.cat(pending).sort().values[:capacity]]
    kept = torch.cat(pending).sort().values[:capacity]
    return int(kept[-1]) if len(kept) == capacity > 0 else _EMPTY


class Reservoir:
    """The `capacity` rows with the smallest keys.

    keys: int64 [K], ascending. rows: float32 [K, I] in that order, K <= capacity.
    Rows with a value that is not finite are never kept, so that whoever computes with them need
    not ask. Under a `limit` (see `threshold`) their places stay empty.
    """

    def __init__(self, capacity: int, features: int, *, limit: int = _EMPTY) -> None:
        self.capacity = capacity
        self.features = features
        self.limit = limit  # rows with a larger key are not looked at
        self._keys = torch.empty(0, dtype=torch.int64)
        self._rows = torch.empty(0, features)
        self._pending: list[tuple[Tensor, Tensor]] = []  # taken in, not yet sorted into the rest
        self._num_pending = 0

    @classmethod
    def identity(cls, capacity: int, features: int) -> "Reservoir":
        """The reservoir of no rows."""
        return cls(capacity, features)

    def update(self, X_NI: Tensor, keys_N: Tensor) -> None:
        """Take in N rows of any floating dtype with their keys (see `row_keys`)."""
        if self.limit != _EMPTY:
            chosen = (keys_N <= self.limit).nonzero().squeeze(1)
            X_NI, keys_N = X_NI[chosen.to(X_NI.device)], keys_N[chosen]
        self._take(keys_N, X_NI.detach().to("cpu", torch.float32, copy=True))

    def merge(self, other: "Reservoir") -> "Reservoir":
        """The reservoir of both sets of rows."""
        merged = Reservoir(self.capacity, self.features, limit=min(self.limit, other.limit))
        for part in (self, other):
            merged._take(part.keys, part.rows)
        merged._settle()
        return merged

    @property
    def keys(self) -> Tensor:
        """int64 [K], ascending."""
        self._settle()
        return self._keys

    @property
    def rows(self) -> Tensor:
        """float32 [K, I], in the order of the keys."""
        self._settle()
        return self._rows

    def pack(self, places: int) -> Tensor:
        """uint8 [packed_bytes]: K (int64), keys (int64), rows (float32); K <= places.

        Empty places are zeros: the size must not depend on what the rows hold.
        """
        empty = places - len(self.keys)
        assert empty >= 0, "more rows than places"
        keys = torch.cat([self._keys, torch.zeros(empty, dtype=torch.int64)])
        rows = torch.cat([self._rows, torch.zeros(empty, self.features)])
        return packing.pack((len(self._keys),), (keys, rows))

    @classmethod
    def unpack(cls, packed: Tensor, *, places: int, capacity: int, features: int) -> "Reservoir":
        """The value that `pack` gave."""
        (kept,), rest = packing.unpack_counts(packed, 1)
        reservoir = cls(capacity, features)
        reservoir._keys = packing.from_bytes(rest[: 8 * kept], torch.int64, (kept,))
        rows = rest[8 * places : 8 * places + 4 * kept * features]
        reservoir._rows = packing.from_bytes(rows, torch.float32, (kept, features))
        return reservoir

    def _take(self, keys: Tensor, rows: Tensor) -> None:
        if len(keys) == 0:
            return
        self._pending.append((keys, rows))
        self._num_pending += len(keys)
        if self._num_pending >= self.capacity:
            self._settle()

    def _settle(self) -> None:
        """Sort what was taken in and drop what is beyond the capacity."""
        if not self._pending:
            return
        keys = torch.cat([self._keys, *(keys for keys, _ in self._pending)])
        rows = torch.cat([self._rows, *(rows for _, rows in self._pending)])
        finite = torch.isfinite(rows).all(1)
        if not bool(finite.all()):
            keys, rows = keys[finite], rows[finite]
        self._keys, order = (part[: self.capacity] for part in keys.sort())
        self._rows = rows[order]
        self._pending, self._num_pending = [], 0
        if len(self._keys) == self.capacity > 0:
            self.limit = min(self.limit, int(self._keys[-1]))


def packed_bytes(places: int, features: int) -> int:
    """Bytes of a packed reservoir, full or not."""
    return 8 + places * (8 + 4 * features)


def _signed(value: int) -> int:
    """An unsigned 64-bit number as the int64 with the same bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)

"""A histogram whose bins no data can change: the top 16 bits of the float32 value.

128 bins an octave over all of float32, for each sign. Bins that depend on nothing make histograms
of different ranks, micro-batches and models merge exactly, in one pass, whatever the outliers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from quantfleet_worker.statistics import packing

_BINS = 1 << 16
_SIGN = 1 << 15
_INFINITE = 0x7F80  # exponent all ones, mantissa 0; above it, NaN
_BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """The occupied finite bins in ascending order of value; all tensors [B].

    lower, upper: float32, the smallest and the largest value that falls into the bin (0 and 0 for
    the bin of zero). counts: int64 > 0.
    """

    lower: Tensor
    upper: Tensor
    counts: Tensor

    @property
    def middle(self) -> Tensor:
        """float32 [B], the centre of each bin."""
        return self.lower + (self.upper - self.lower) * 0.5

    def absolute(self) -> "Bins":
        """The bins of |x|."""
        lower = torch.where(self.upper < 0, -self.upper, self.lower)
        order = torch.argsort(lower, stable=True)
        lower, source = torch.unique_consecutive(lower[order], return_inverse=True)
        counts = torch.zeros(len(lower), dtype=torch.int64)
        counts.index_add_(0, source, self.counts[order])
        upper = torch.zeros(len(lower))
        upper[source] = torch.where(self.upper < 0, -self.lower, self.upper)[order]
        return Bins(lower=lower, upper=upper, counts=counts)


class UniversalHistogram:
    """Counts int64 [65536] of values by the top 16 bits of their float32 form."""

    def __init__(self) -> None:
        # Indexed by the bits as a signed number + 32768, which a shift gives without masking.
        self._counts = torch.zeros(_BINS, dtype=torch.int64)

    @classmethod
    def identity(cls) -> "UniversalHistogram":
        """The histogram of no values."""
        return cls()

    @property
    def counts(self) -> Tensor:
        """int64 [65536], indexed by the 16 bits read as an unsigned number."""
        return self._counts.roll(_SIGN)

    def update(self, X: Tensor) -> None:
        """Take in all values of a tensor of any shape and floating dtype."""
        flat = X.detach().reshape(-1)
        for start in range(0, flat.shape[0], _BLOCK_ELEMENTS):
            keys = _top_bits(flat[start : start + _BLOCK_ELEMENTS]).add_(_SIGN)
            self._counts += torch.bincount(keys, minlength=_BINS).cpu()

    def merge(self, other: "UniversalHistogram") -> "UniversalHistogram":
        """The histogram of both sets of values."""
        merged = UniversalHistogram()
        torch.add(self._counts, other._counts, out=merged._counts)
        return merged

    @property
    def zeros(self) -> int:
        """Values that are 0 or -0, or too small for a bin of their own (below 1e-40)."""
        counts = self.counts
        return int(counts[0] + counts[_SIGN])

    @property
    def infinities(self) -> int:
        """Infinite values of both signs."""
        counts = self.counts
        return int(counts[_INFINITE] + counts[_SIGN + _INFINITE])

    @property
    def nans(self) -> int:
        """Values that are NaN."""
        counts = self.counts
        return int(counts[_INFINITE + 1 : _SIGN].sum() + counts[_SIGN + _INFINITE + 1 :].sum())

    def finite(self) -> Bins:
        """The occupied bins of finite values, ascending, zeros as one bin."""
        counts = self.counts
        patterns = torch.arange(1, _INFINITE, dtype=torch.int32)
        inner = (patterns << 16).view(torch.float32)
        outer = ((patterns << 16) | 0xFFFF).view(torch.float32)
        zero = torch.zeros(1)
        lower = torch.cat([-outer.flip(0), zero, inner])
        upper = torch.cat([-inner.flip(0), zero, outer])
        negative = counts[_SIGN + 1 : _SIGN + _INFINITE].flip(0)
        zeros = (counts[0] + counts[_SIGN]).reshape(1)
        ordered = torch.cat([negative, zeros, counts[1:_INFINITE]])
        occupied = ordered.nonzero().squeeze(1)
        return Bins(lower=lower[occupied], upper=upper[occupied], counts=ordered[occupied])

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed form."""
        return 8 * _BINS

    def pack(self) -> Tensor:
        """uint8 [num_bytes]: the counts in ascending order of the bits as a signed number."""
        return packing.as_bytes(self._counts)

    @classmethod
    def unpack(cls, packed: Tensor) -> "UniversalHistogram":
        """The value that `pack` gave."""
        histogram = cls()
        histogram._counts = packing.from_bytes(packed, torch.int64, (_BINS,))
        return histogram


def _top_bits(flat: Tensor) -> Tensor:
    """The top 16 bits of each value's float32 form, int32, as a signed number."""
    if flat.dtype == torch.bfloat16:
        return flat.contiguous().view(torch.int16).to(torch.int32)
    return flat.to(torch.float32).contiguous().view(torch.int32).bitwise_right_shift(16)


def quantile_bounds(bins: Bins, *, kept: int) -> tuple[float, float]:
    """The range that leaves out as many of the values as it may at each end, keeping `kept`.

    Going up, the range ends with the bin in which the kept-th smallest value lies, and going down
    with that of the kept-th largest: the outer edges, so no kept value is clipped.
    """
    rank = torch.tensor([kept], dtype=torch.int64)
    up = int(torch.searchsorted(bins.counts.cumsum(0), rank))
    down = int(torch.searchsorted(bins.counts.flip(0).cumsum(0), rank))
    return float(bins.lower[len(bins.counts) - 1 - down]), float(bins.upper[up])

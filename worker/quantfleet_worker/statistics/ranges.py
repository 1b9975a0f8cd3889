"""Smallest and largest value of every channel: what MinMax ranges and smoothing factors need."""

from math import isfinite

import torch
from torch import Tensor

from quantfleet_worker.statistics import packing


class ChannelRanges:
    """Ranges of I channels over the rows seen.

    minimum, maximum: float32 [I], over finite values only; +inf and -inf where there was none.
    rows: rows seen. nonfinite: values left out because they were infinite or NaN.
    """

    def __init__(self, features: int) -> None:
        self.features = features
        self.minimum = torch.full((features,), torch.inf)
        self.maximum = torch.full((features,), -torch.inf)
        self.rows = 0
        self.nonfinite = 0

    @classmethod
    def identity(cls, features: int) -> "ChannelRanges":
        """The ranges of no rows."""
        return cls(features)

    def update(self, X_NI: Tensor) -> None:
        """Take in N rows of any floating dtype."""
        if X_NI.shape[0] == 0:
            return
        X_NI = X_NI.detach().to(torch.float32)
        low, high = X_NI.amin(0), X_NI.amax(0)
        # amin and amax hand NaN on: their I results tell whether any value may need care.
        if not isfinite(float((high - low).sum())):
            finite = torch.isfinite(X_NI)
            low = torch.where(finite, X_NI, torch.inf).amin(0)
            high = torch.where(finite, X_NI, -torch.inf).amax(0)
            self.nonfinite += X_NI.numel() - int(finite.sum())
        # Which zero wins among -0 and 0 depends on the order of rows; adding 0 leaves one zero.
        self.minimum = torch.minimum(self.minimum, (low + 0.0).cpu())
        self.maximum = torch.maximum(self.maximum, (high + 0.0).cpu())
        self.rows += X_NI.shape[0]

    def merge(self, other: "ChannelRanges") -> "ChannelRanges":
        """The ranges of both sets of rows."""
        merged = ChannelRanges(self.features)
        merged.minimum = torch.minimum(self.minimum, other.minimum)
        merged.maximum = torch.maximum(self.maximum, other.maximum)
        merged.rows = self.rows + other.rows
        merged.nonfinite = self.nonfinite + other.nonfinite
        return merged

    def bounds(self, smoothing_I: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of all channels (float32 [1]), each divided by its factor.

        Division by a positive factor is monotone, so this is exact: what the divided rows give.
        """
        if smoothing_I is None:
            return self.minimum.amin().reshape(1), self.maximum.amax().reshape(1)
        low, high = self.minimum / smoothing_I, self.maximum / smoothing_I
        return low.amin().reshape(1), high.amax().reshape(1)

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed form."""
        return 16 + 8 * self.features

    def pack(self) -> Tensor:
        """uint8 [num_bytes]: rows, nonfinite (int64), minimum, maximum (float32)."""
        return packing.pack((self.rows, self.nonfinite), (self.minimum, self.maximum))

    @classmethod
    def unpack(cls, packed: Tensor, *, features: int) -> "ChannelRanges":
        """The value that `pack` gave."""
        ranges = cls(features)
        (ranges.rows, ranges.nonfinite), rest = packing.unpack_counts(packed, 2)
        both = packing.from_bytes(rest, torch.float32, (2, features))
        ranges.minimum, ranges.maximum = both[0], both[1]
        return ranges

"""All statistics of one site, as one mergeable value.

Filled by the observed pass, packed for the exchange in the order the plan lists, merged by the
site's owner.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quantfleet_api.plan import Plan, SitePlan
from quantfleet_worker.statistics import second_moment
from quantfleet_worker.statistics.histogram import UniversalHistogram
from quantfleet_worker.statistics.ranges import ChannelRanges
from quantfleet_worker.statistics.reservoir import Reservoir, packed_bytes
from quantfleet_worker.statistics.second_moment import SecondMoment


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a rank has run, as far as it decides how much it has to send."""

    leaves: tuple[int, int]  # [start, stop)
    kept_rows: int  # most rows that its reservoir can hold


class KeptRows(Protocol):
    """Which of the observed rows the reservoir may keep, and their keys."""

    @property
    def kept(self) -> Tensor: ...

    @property
    def keys(self) -> Tensor: ...


@dataclass(slots=True, kw_only=True)
class SiteStatistics:
    """What the plan asks for at one site; the rest is None."""

    ranges: ChannelRanges | None = None
    histogram: UniversalHistogram | None = None
    reservoir: Reservoir | None = None
    second_moment: SecondMoment | None = None

    @classmethod
    def identity(cls, site: SitePlan, plan: Plan) -> "SiteStatistics":
        """The statistics of no rows."""
        wanted, features = site.statistics, site.features
        return cls(
            ranges=ChannelRanges(features) if "ranges" in wanted else None,
            histogram=UniversalHistogram() if "histogram" in wanted else None,
            reservoir=Reservoir(plan.reservoir_rows, features) if "reservoir" in wanted else None,
            second_moment=SecondMoment(features, max(1, len(plan.leaves)))
            if "second_moment" in wanted
            else None,
        )

    def update(self, leaf: int, X_NI: Tensor, rows: KeptRows) -> None:
        """Take in the valid rows of one micro-batch."""
        if self.ranges is not None:
            self.ranges.update(X_NI)
        if self.histogram is not None:
            self.histogram.update(X_NI)
        if self.reservoir is not None and len(rows.kept):
            kept = rows.kept.to(X_NI.device)
            self.reservoir.update(X_NI.index_select(0, kept), rows.keys)
        if self.second_moment is not None:
            self.second_moment.update(leaf, X_NI)

    def finish_leaf(self) -> None:
        """All micro-batches of the present leaf are in."""
        if self.second_moment is not None:
            self.second_moment.finish_leaf()

    def merge(self, other: "SiteStatistics") -> "SiteStatistics":
        """The statistics of both sets of rows; `other` may be used up."""
        merged = SiteStatistics()
        if self.ranges is not None and other.ranges is not None:
            merged.ranges = self.ranges.merge(other.ranges)
        if self.histogram is not None and other.histogram is not None:
            merged.histogram = self.histogram.merge(other.histogram)
        if self.reservoir is not None and other.reservoir is not None:
            merged.reservoir = self.reservoir.merge(other.reservoir)
        if self.second_moment is not None and other.second_moment is not None:
            merged.second_moment = self.second_moment.merge(other.second_moment)
        return merged

    @staticmethod
    def num_bytes(site: SitePlan, plan: Plan, share: Share) -> int:
        """Bytes of `pack` by the rank of that share."""
        total = 0
        for name in site.statistics:
            match name:
                case "ranges":
                    total += 16 + 8 * site.features
                case "histogram":
                    total += 8 << 16
                case "reservoir":
                    total += packed_bytes(share.kept_rows, site.features)
                case "second_moment":
                    total += second_moment.packed_bytes(
                        site.features, max(1, len(plan.leaves)), *share.leaves
                    )
        return total

    def pack(self, share: Share) -> Tensor:
        """uint8 [num_bytes]."""
        packed: list[Tensor] = []
        if self.ranges is not None:
            packed.append(self.ranges.pack())
        if self.histogram is not None:
            packed.append(self.histogram.pack())
        if self.reservoir is not None:
            packed.append(self.reservoir.pack(share.kept_rows))
        if self.second_moment is not None:
            packed.append(self.second_moment.pack())
        return torch.cat(packed) if packed else torch.empty(0, dtype=torch.uint8)

    @classmethod
    def unpack(cls, packed: Tensor, site: SitePlan, plan: Plan, share: Share) -> "SiteStatistics":
        """The value that `pack` gave on the rank of that share."""
        features, position = site.features, 0
        found = cls.identity(site, plan)

        def take(num_bytes: int) -> Tensor:
            nonlocal position
            position += num_bytes
            return packed[position - num_bytes : position]

        if found.ranges is not None:
            found.ranges = ChannelRanges.unpack(take(found.ranges.num_bytes), features=features)
        if found.histogram is not None:
            found.histogram = UniversalHistogram.unpack(take(found.histogram.num_bytes))
        if found.reservoir is not None:
            found.reservoir = Reservoir.unpack(
                take(packed_bytes(share.kept_rows, features)),
                places=share.kept_rows,
                capacity=plan.reservoir_rows,
                features=features,
            )
        if found.second_moment is not None:
            found.second_moment = SecondMoment.unpack(
                packed[position:],
                features=features,
                num_leaves=max(1, len(plan.leaves)),
                start=share.leaves[0],
                stop=share.leaves[1],
            )
        return found

    # what a rank needs to solve a task: the second moment, else the reservoir

    @staticmethod
    def merged_num_bytes(site: SitePlan, plan: Plan) -> int:
        """Bytes of `pack_merged`."""
        if "second_moment" in site.statistics:
            return second_moment.node_bytes(site.features)
        if "reservoir" in site.statistics:
            return packed_bytes(plan.reservoir_rows, site.features)
        return 0

    def pack_merged(self) -> Tensor:
        """uint8 [merged_num_bytes] of complete statistics."""
        if self.second_moment is not None:
            return self.second_moment.pack_node(self.second_moment.nodes[0])
        if self.reservoir is not None:
            return self.reservoir.pack(self.reservoir.capacity)
        return torch.empty(0, dtype=torch.uint8)

    @classmethod
    def unpack_merged(cls, packed: Tensor, site: SitePlan, plan: Plan) -> "SiteStatistics":
        """What `pack_merged` gave; the other statistics stay with the owner."""
        found = cls()
        if "second_moment" in site.statistics:
            found.second_moment = SecondMoment(site.features, 1)
            found.second_moment.add_packed_node((0, 0), packed)
        elif "reservoir" in site.statistics:
            found.reservoir = Reservoir.unpack(
                packed,
                places=plan.reservoir_rows,
                capacity=plan.reservoir_rows,
                features=site.features,
            )
        return found

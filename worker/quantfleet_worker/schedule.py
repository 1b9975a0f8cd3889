"""The layout: who does what. Derived from the plan and the number of ranks, never digested.

Called by the engine on every rank (all compute the same layout) and by `quantfleet plan`. Ranks own
whole runs of leaves; solving is cut into tasks (a fixed block of rows of one linear) that do not
depend on the number of ranks, so neither do the bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from quantfleet_api.plan import LayerPlan, LinearPlan, MicroBatch, Plan, SitePlan
from quantfleet_worker.data import shard
from quantfleet_worker.statistics.reservoir import row_keys, threshold

TASK_ROWS = 512
"""Rows of a task. Part of the numerics: GPTQ of a block of rows is one matrix product a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Rows [start, stop) of one linear of one site."""

    site: int
    linear: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLayout:
    """Who merges, solves and writes one layer."""

    site_owners: tuple[int, ...]
    tasks: tuple[Task, ...]
    task_owners: tuple[int, ...]
    writers: dict[str, tuple[int, ...]]  # by format, one rank a file

    def tasks_of(self, rank: int) -> list[int]:
        """Indices of the tasks that `rank` solves, in plan order."""
        return [index for index, owner in enumerate(self.task_owners) if owner == rank]

    def readers_of_site(self, site: int) -> tuple[int, ...]:
        """Ranks other than the owner that need the site's merged statistics to solve a task."""
        owners = {
            owner
            for task, owner in zip(self.tasks, self.task_owners, strict=True)
            if task.site == site
        }
        return tuple(sorted(owners - {self.site_owners[site]}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which leaves and micro-batches each rank runs."""

    world_size: int
    leaf_ranges: tuple[tuple[int, int], ...]
    micro_batch_ranges: tuple[tuple[int, int], ...]
    kept_rows: tuple[int, ...]  # of each rank's, how many a site's reservoir can keep

    def leaves_of(self, rank: int) -> range:
        """Leaf indices of `rank`."""
        return range(*self.leaf_ranges[rank])

    def micro_batches_of(self, rank: int) -> range:
        """Micro-batch indices of `rank`."""
        return range(*self.micro_batch_ranges[rank])


def make_layout(plan: Plan, world_size: int) -> Layout:
    """Give contiguous runs of leaves to ranks, balanced by tokens; a rank may get none."""
    tokens = [
        sum(sum(plan.micro_batches[index].lengths) for index in range(start, stop))
        for start, stop in plan.leaves
    ]
    leaf_ranges = shard(tokens, world_size)
    bounds = [start for start, _ in plan.leaves] + [len(plan.micro_batches)]
    micro_batch_ranges = tuple((bounds[start], bounds[stop]) for start, stop in leaf_ranges)
    kept = kept_rows(plan.micro_batches, plan.reservoir_rows)
    return Layout(
        world_size=world_size,
        leaf_ranges=leaf_ranges,
        micro_batch_ranges=micro_batch_ranges,
        kept_rows=tuple(sum(kept[start:stop]) for start, stop in micro_batch_ranges),
    )


@lru_cache(maxsize=2)
def kept_rows(micro_batches: tuple[MicroBatch, ...], capacity: int) -> tuple[int, ...]:
    """Rows of each micro-batch whose keys are among the `capacity` smallest of all.

    Which rows those are follows from the lengths alone, so what a rank's reservoir can hold, and
    has to send, is known before any row is. Rows that are not finite leave their places empty.
    """
    lengths = [list(zip(batch.samples, batch.lengths, strict=True)) for batch in micro_batches]
    highest = threshold([pair for batch in lengths for pair in batch], capacity)
    return tuple(
        sum(int((row_keys(sample, length) <= highest).sum()) for sample, length in batch)
        for batch in lengths
    )


def layer_layout(layer: LayerPlan, world_size: int) -> LayerLayout:
    """Assign the tasks of one layer, longest processing time first; ties go to the lower rank.

    The assignment is rotated by the layer's index, so that the rank with most work changes.
    """
    tasks = _tasks(layer)
    costs = [_cost(layer.sites[task.site], task) for task in tasks]
    owners = [(rank + layer.index) % world_size for rank in _longest_first(costs, world_size)]
    return LayerLayout(
        site_owners=tuple(
            _site_owner(index, tasks, owners, costs, default=(layer.index + index) % world_size)
            for index in range(len(layer.sites))
        ),
        tasks=tuple(tasks),
        task_owners=tuple(owners),
        writers={
            name: tuple((layer.index + number) % world_size for number in range(len(files)))
            for name, files in layer.files.items()
        },
    )


def _tasks(layer: LayerPlan) -> list[Task]:
    return [
        Task(
            site=site_index,
            linear=linear_index,
            start=start,
            stop=min(start + TASK_ROWS, linear.out_features),
        )
        for site_index, site in enumerate(layer.sites)
        for linear_index, linear in enumerate(site.linears)
        if linear.scheme is not None
        for start in range(0, linear.out_features, TASK_ROWS)
    ]


def _cost(site: SitePlan, task: Task) -> float:
    """Multiply-adds, roughly: a Cholesky and its inverse a task, a rank-1 update a column."""
    rows, columns = task.stop - task.start, site.features
    if _uses_gptq(site.linears[task.linear]):
        return columns**3 / 2 + rows * columns**2 + 20_000 * columns
    return 20.0 * rows * columns


def _uses_gptq(linear: LinearPlan) -> bool:
    return linear.scheme is not None and linear.scheme.weights.gptq is not None


def _longest_first(costs: Sequence[float], num_bins: int) -> list[int]:
    """Graham's rule: the most expensive item goes to the least loaded bin."""
    loads = [0.0] * num_bins
    bins = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda item: (-costs[item], item)):
        bins[index] = min(range(num_bins), key=lambda rank: (loads[rank], rank))
        loads[bins[index]] += costs[index]
    return bins


def _site_owner(
    site: int, tasks: Sequence[Task], owners: Sequence[int], costs: Sequence[float], default: int
) -> int:
    """The rank with most of the site's solving: it then needs no copy of the statistics."""
    load: dict[int, float] = {}
    for task, owner, cost in zip(tasks, owners, costs, strict=True):
        if task.site == site:
            load[owner] = load.get(owner, 0.0) + cost
    return min(load, key=lambda rank: (-load[rank], rank)) if load else default

"""What travels in the three exchange phases of a layer, as bytes of sizes that plan and layout fix.

1. partials: every rank's statistics of a site to the site's owner, which merges them;
2. solutions: factors and activation ranges to all, merged statistics to the ranks that solve there;
3. results: codes and scales of every task to all.

Called by `run.py` on every rank in the same order; also tells `quantfleet plan` how much will move.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from quantfleet_api.plan import LayerPlan, LinearPlan, Plan, SitePlan
from quantfleet_worker.exchange import Exchange
from quantfleet_worker.schedule import LayerLayout, Layout, Task
from quantfleet_worker.solve import SiteSolution, TaskSolution, static_scheme_of
from quantfleet_worker.statistics.packing import as_bytes
from quantfleet_worker.statistics.site import Share, SiteStatistics


class Cursor:
    """Reads tensors one after another out of received bytes."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer, self._position = buffer, 0

    def take(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """The next tensor of this dtype and shape, in memory of its own."""
        count = 1
        for size in shape:
            count *= size
        return self.take_bytes(count * dtype.itemsize).view(dtype).reshape(shape)

    def take_bytes(self, num_bytes: int) -> Tensor:
        """The next bytes, copied: a view could not be read as a wider dtype."""
        piece = self._buffer[self._position : self._position + num_bytes].clone()
        assert len(piece) == num_bytes, "sender and receiver agree on sizes"
        self._position += num_bytes
        return piece


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.empty(0, dtype=torch.uint8)


def share_of(layout: Layout, rank: int) -> Share:
    """What `rank` runs."""
    return Share(leaves=layout.leaf_ranges[rank], kept_rows=layout.kept_rows[rank])


# 1. partials


def partial_bytes(
    plan: Plan, layout: Layout, layer: LayerPlan, own: LayerLayout
) -> list[list[int]]:
    """Bytes of phase 1 from each rank (row) to each rank (column)."""
    table = [[0] * layout.world_size for _ in range(layout.world_size)]
    for source in range(layout.world_size):
        for index, site in enumerate(layer.sites):
            table[source][own.site_owners[index]] += SiteStatistics.num_bytes(
                site, plan, share_of(layout, source)
            )
    return table


def exchange_partials(
    exchange: Exchange,
    plan: Plan,
    layout: Layout,
    layer: LayerPlan,
    own: LayerLayout,
    statistics: Sequence[SiteStatistics],
) -> dict[int, SiteStatistics]:
    """Merged statistics of the sites that this rank owns, by site index."""
    outgoing: list[list[Tensor]] = [[] for _ in range(layout.world_size)]
    for index, owner in enumerate(own.site_owners):
        if owner != exchange.rank:
            share = share_of(layout, exchange.rank)
            outgoing[owner].append(statistics[index].pack(share))
    received = exchange.all_to_all(
        [_joined(parts) for parts in outgoing], partial_bytes(plan, layout, layer, own)
    )
    cursors = [Cursor(buffer) for buffer in received]
    merged: dict[int, SiteStatistics] = {}
    for index, owner in enumerate(own.site_owners):
        if owner != exchange.rank:
            continue
        total = statistics[index]
        for source, cursor in enumerate(cursors):
            if source != exchange.rank:
                site, share = layer.sites[index], share_of(layout, source)
                size = SiteStatistics.num_bytes(site, plan, share)
                total = total.merge(
                    SiteStatistics.unpack(cursor.take_bytes(size), site, plan, share)
                )
        merged[index] = total
    return merged


# 2. solutions


def solution_bytes(site: SitePlan) -> int:
    """Bytes of one site's solution."""
    if not site.statistics:
        return 0
    static = static_scheme_of(site)
    return (
        (4 * site.features if site.smoothing is not None else 0)
        + (0 if static is None else 5)
        + 4 * 8
    )


def merged_bytes(plan: Plan, layout: Layout, layer: LayerPlan, own: LayerLayout) -> list[list[int]]:
    """Bytes of merged statistics from each site's owner to the ranks that solve there."""
    table = [[0] * layout.world_size for _ in range(layout.world_size)]
    for index, site in enumerate(layer.sites):
        for reader in own.readers_of_site(index):
            table[own.site_owners[index]][reader] += SiteStatistics.merged_num_bytes(site, plan)
    return table


def exchange_solutions(
    exchange: Exchange,
    plan: Plan,
    layout: Layout,
    layer: LayerPlan,
    own: LayerLayout,
    solved: Mapping[int, SiteSolution],
    merged: Mapping[int, SiteStatistics],
) -> tuple[dict[int, SiteSolution], dict[int, SiteStatistics]]:
    """All sites' solutions, and the statistics of those sites where this rank solves a task."""
    owned = [index for index, owner in enumerate(own.site_owners) if owner == exchange.rank]
    sizes = [0] * layout.world_size
    for index, site in enumerate(layer.sites):
        sizes[own.site_owners[index]] += solution_bytes(site)
    blobs = exchange.publish(
        _joined([_pack_solution(layer.sites[index], solved[index]) for index in owned]), sizes
    )
    cursors = [Cursor(blob) for blob in blobs]
    solutions = {
        index: _take_solution(cursors[own.site_owners[index]], site)
        for index, site in enumerate(layer.sites)
    }
    outgoing: list[list[Tensor]] = [[] for _ in range(layout.world_size)]
    for index in owned:
        for reader in own.readers_of_site(index):
            outgoing[reader].append(merged[index].pack_merged())
    received = exchange.all_to_all(
        [_joined(parts) for parts in outgoing], merged_bytes(plan, layout, layer, own)
    )
    cursors = [Cursor(buffer) for buffer in received]
    readable = dict(merged)
    for index, site in enumerate(layer.sites):
        if exchange.rank in own.readers_of_site(index):
            size = SiteStatistics.merged_num_bytes(site, plan)
            readable[index] = SiteStatistics.unpack_merged(
                cursors[own.site_owners[index]].take_bytes(size), site, plan
            )
    return solutions, readable


def _pack_solution(site: SitePlan, solution: SiteSolution) -> Tensor:
    parts = (
        solution.factors,
        solution.input_scale,
        _zero_if_symmetric(solution),
        solution.counts,
    )
    packed = _joined([as_bytes(part) for part in parts if part is not None])
    assert len(packed) == solution_bytes(site)
    return packed


def _zero_if_symmetric(solution: SiteSolution) -> Tensor | None:
    if solution.input_scale is None:
        return None
    if solution.input_zero_point is None:
        return torch.zeros(1, dtype=torch.int8)
    return solution.input_zero_point


def _take_solution(cursor: Cursor, site: SitePlan) -> SiteSolution:
    if not site.statistics:
        return SiteSolution()
    factors = cursor.take(torch.float32, site.features) if site.smoothing is not None else None
    scale = zero_point = None
    static = static_scheme_of(site)
    if static is not None:
        scale = cursor.take(torch.float32, 1)
        zero_point = cursor.take(torch.int8, 1)
        if static.symmetric:
            zero_point = None
    counts = cursor.take(torch.int64, 4)
    return SiteSolution(
        factors=factors, input_scale=scale, input_zero_point=zero_point, counts=counts
    )


# 3. results


def groups_of(linear: LinearPlan) -> int:
    """Scales a row."""
    assert linear.scheme is not None
    size = linear.scheme.weights.group_size
    return linear.in_features // size if size else 1


def result_bytes(task: Task, linear: LinearPlan) -> int:
    """Bytes of one task's result: codes, scales, zero points, two float32 for the report."""
    assert linear.scheme is not None
    per_scale = 4 if linear.scheme.weights.symmetric else 5
    rows = task.stop - task.start
    return rows * (linear.in_features + per_scale * groups_of(linear)) + 8


def exchange_results(
    exchange: Exchange, layer: LayerPlan, own: LayerLayout, solved: Mapping[int, TaskSolution]
) -> list[TaskSolution]:
    """All tasks' results in plan order; the notes stay with the rank that made them."""
    sizes = [0] * exchange.world_size
    for task, owner in zip(own.tasks, own.task_owners, strict=True):
        sizes[owner] += result_bytes(task, _linear_of(layer, task))
    mine = _joined([_pack_result(solved[index]) for index in own.tasks_of(exchange.rank)])
    cursors = [Cursor(blob) for blob in exchange.publish(mine, sizes)]
    return [
        _take_result(cursors[owner], task, _linear_of(layer, task))
        for task, owner in zip(own.tasks, own.task_owners, strict=True)
    ]


def _linear_of(layer: LayerPlan, task: Task) -> LinearPlan:
    return layer.sites[task.site].linears[task.linear]


def _pack_result(result: TaskSolution) -> Tensor:
    def parts() -> Iterator[Tensor]:
        yield result.codes
        yield result.scale
        if result.zero_point is not None:
            yield result.zero_point
        yield torch.tensor([result.error, result.reference], dtype=torch.float32)

    return _joined([as_bytes(part) for part in parts()])


def _take_result(cursor: Cursor, task: Task, linear: LinearPlan) -> TaskSolution:
    assert linear.scheme is not None
    rows, groups = task.stop - task.start, groups_of(linear)
    codes = cursor.take(torch.int8, rows, linear.in_features)
    scale = cursor.take(torch.float32, rows, groups)
    symmetric = linear.scheme.weights.symmetric
    zero_point = None if symmetric else cursor.take(torch.int8, rows, groups)
    error, reference = cursor.take(torch.float32, 2).tolist()
    return TaskSolution(
        codes=codes, scale=scale, zero_point=zero_point, error=error, reference=reference
    )

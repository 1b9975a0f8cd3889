"""How many bytes the exchanges of a layer will move. Called by `quantfleet plan`; pure."""

from dataclasses import dataclass

from quantfleet_api.plan import LayerPlan, Plan
from quantfleet_worker.schedule import Layout, layer_layout
from quantfleet_worker.wire import merged_bytes, partial_bytes, result_bytes, solution_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraffic:
    """Bytes that ranks send to other ranks in each exchange phase, all ranks together."""

    partials: int
    solutions: int
    results: int
    phases: int  # that the layer has, even if nothing has to move


def layer_traffic(plan: Plan, layout: Layout, layer: LayerPlan) -> LayerTraffic:
    """The three phases of a layer.

    1. Each rank's statistics go to the site's owner. 2. Each site's solution goes to all others,
    merged statistics to the ranks that solve there. 3. Each task's result goes to all others.
    """
    own = layer_layout(layer, layout.world_size)
    others = layout.world_size - 1
    observed = any(site.statistics for site in layer.sites)
    solutions = others * sum(solution_bytes(site) for site in layer.sites)
    results = others * sum(
        result_bytes(task, layer.sites[task.site].linears[task.linear]) for task in own.tasks
    )
    return LayerTraffic(
        partials=_off_diagonal(partial_bytes(plan, layout, layer, own)) if observed else 0,
        solutions=solutions + _off_diagonal(merged_bytes(plan, layout, layer, own))
        if observed
        else 0,
        results=results,
        phases=2 * observed + bool(own.tasks),
    )


def _off_diagonal(table: list[list[int]]) -> int:
    return sum(size for s, row in enumerate(table) for d, size in enumerate(row) if s != d)

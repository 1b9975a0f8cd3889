"""Which statistics a site needs, and how many leaves and rows they are kept in.

Called by planning. Only what something is computed from is collected: the activation range, the
smoothing factors, GPTQ's second moment, and the rows from which the report's output error comes
where no second moment is there to give it.
"""

from collections.abc import Iterable, Sequence
from typing import get_args

from quantfleet_api.plan import LayerPlan, LinearPlan, SitePlan, StatisticName
from quantfleet_worker.observers import needed_statistics
from quantfleet_worker.statistics.second_moment import node_bytes

RESERVOIR_ROWS = 256
DECIDING_RESERVOIR_ROWS = 1024
"""Rows of a site's reservoir; more where it decides a range and not only the report's error."""

MAX_LEAVES = 256
MAX_LEAVES_OF_LARGE = 32
LARGE_NODE_BYTES = 64 << 20
"""Every rank parks up to two nodes a level of the tree, so large ones get a smaller tree."""


def site_statistics(linears: Iterable[LinearPlan], *, smoothed: bool) -> tuple[StatisticName, ...]:
    """Statistics of a site in the order they travel; none where nothing is computed from them."""
    needed: set[StatisticName] = {"ranges"} if smoothed else set()
    for linear in linears:
        if linear.scheme is not None:
            needed |= set(needed_statistics(linear.scheme.activations, smoothed))
            if linear.scheme.weights.gptq is not None:
                needed.add("second_moment")
    if not needed:
        return ()
    needed.add("ranges")  # also tells dead channels and values that are not finite
    if "second_moment" not in needed:
        needed.add("reservoir")
    return tuple(name for name in get_args(StatisticName) if name in needed)


def reservoir_rows(layers: Iterable[LayerPlan]) -> int:
    """Rows of every reservoir of the plan."""
    sites = [site for layer in layers for site in layer.sites]
    return DECIDING_RESERVOIR_ROWS if any(map(_reservoir_decides, sites)) else RESERVOIR_ROWS


def _reservoir_decides(site: SitePlan) -> bool:
    return any(
        "reservoir" in needed_statistics(linear.scheme.activations, site.smoothing is not None)
        for linear in site.linears
        if linear.scheme is not None
    )


def max_leaves(layers: Iterable[LayerPlan]) -> int:
    """Most leaves of the plan's tree."""
    large = any(
        "second_moment" in site.statistics and node_bytes(site.features) > LARGE_NODE_BYTES
        for layer in layers
        for site in layer.sites
    )
    return MAX_LEAVES_OF_LARGE if large else MAX_LEAVES


def layer_passes(layers: Sequence[LayerPlan], *, propagation: str) -> tuple[int, ...]:
    """How often each layer sees each micro-batch while calibrating (law L3).

    Behind the last observed layer nobody needs activations, so nothing runs. With `Quantized`, the
    pass that makes the next layer's input comes on top of the observed one, where both are needed.
    """
    observed = [any(site.statistics for site in layer.sites) for layer in layers]
    last = max((index for index, seen in enumerate(observed) if seen), default=-1)
    counts = []
    for index, layer in enumerate(layers):
        if layer.kind == "embedding" or index > last:
            counts.append(1 if index < last else 0)
        elif index == last or propagation == "Float":
            counts.append(1)
        else:
            counts.append(2 if observed[index] else 1)
    return tuple(counts)

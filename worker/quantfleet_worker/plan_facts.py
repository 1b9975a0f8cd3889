"""What follows from a plan about passes and lifetimes; no layout, no state.

Asked by the engine, by the memory sum and by descriptions, so that all three mean the same.
"""

from quantfleet_api.plan import LayerPlan, Plan, SourceTensor


def observes(layer: LayerPlan) -> bool:
    """Whether the layer has a site whose statistics are wanted."""
    return any(site.statistics for site in layer.sites)


def advances(plan: Plan, layer: LayerPlan) -> bool:
    """Whether a later layer needs this one's output: there is no pass that nobody needs."""
    return any(observes(later) for later in plan.layers[layer.index + 1 :])


def num_passes(plan: Plan, layer: LayerPlan) -> int:
    """Passes of every micro-batch through a layer (law L3)."""
    if layer.kind != "decoder":
        return 0
    if plan.propagation == "Float":
        return int(observes(layer) or advances(plan, layer))
    return int(observes(layer)) + int(advances(plan, layer))


def keeps_source(plan: Plan, layer: LayerPlan) -> bool:
    """Whether a step after solving uses source tensors; else their memory is free from there."""
    floating = plan.propagation == "Float" and advances(plan, layer)
    return layer.kind == "embedding" or bool(layer.copies) or (floating and not observes(layer))


def kept_for_head(plan: Plan) -> tuple[SourceTensor, ...]:
    """The embedding where the head needs it too: it stays in memory, so it is read once."""
    first, last = plan.layers[0].source, {tensor.name for tensor in plan.layers[-1].source}
    return tuple(tensor for tensor in first if tensor.name in last)

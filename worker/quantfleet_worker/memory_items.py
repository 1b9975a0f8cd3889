"""The summands of a rank's memory, one function each; `memory.py` says which live together.

A plan counts bytes exactly; only activations and solving are estimates. Where ranks differ the
largest counts. Shapes: O, I of a linear; D hidden size; V vocabulary.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

from quantfleet_api.plan import LayerPlan, LinearPlan, Plan, SitePlan
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.formats.safetensors_file import num_bytes
from quantfleet_worker.headers import DTYPE_BYTES
from quantfleet_worker.plan_facts import keeps_source, kept_for_head
from quantfleet_worker.schedule import TASK_ROWS, Layout, layer_layout
from quantfleet_worker.statistics.second_moment import node_bytes
from quantfleet_worker.statistics.site import SiteStatistics
from quantfleet_worker.statistics.tree import parked_nodes
from quantfleet_worker.wire import merged_bytes, partial_bytes

FLOAT_BYTES = 4  # of a float32


def weights(layer: LayerPlan) -> int:
    """Source tensors as they lie in the checkpoint."""
    return sum(tensor.num_bytes for tensor in layer.source)


def in_float32(layer: LayerPlan) -> int:
    """The source tensors once more, where their own dtype is narrower."""
    narrow = (tensor for tensor in layer.source if DTYPE_BYTES[tensor.dtype] < FLOAT_BYTES)
    return sum(FLOAT_BYTES * math.prod(tensor.shape) for tensor in narrow)


def next_weights(plan: Plan, layer: LayerPlan) -> int:
    """The layer that is read ahead."""
    following = layer.index + 1
    if following == len(plan.layers):
        return 0
    return weights(plan.layers[following]) - (
        kept(plan) if following == len(plan.layers) - 1 else 0
    )


def kept(plan: Plan) -> int:
    """The embedding that the head needs too."""
    return sum(tensor.num_bytes for tensor in kept_for_head(plan))


def token_ids(plan: Plan, layout: Layout) -> int:
    """int64 ids of the rank's micro-batches, pads included."""
    return 8 * _padded_tokens(plan, layout)


def carry(plan: Plan, layout: Layout) -> int:
    """Hidden states [B, L, D] of the rank's micro-batches; one set, replaced in place."""
    return _padded_tokens(plan, layout) * hidden_size(plan) * item_bytes(plan)


def being_written(plan: Plan, index: int) -> int:
    """A finished layer that the writer still holds: results, codes, encoded tensors."""
    if index < 0:
        return 0
    layer = plan.layers[index]
    kept = weights(layer) if keeps_source(plan, layer) else 0
    return kept + 2 * quantized(layer) + encoded(plan, layer) + other_formats(plan, layer)


def statistics(plan: Plan, layout: Layout, layer: LayerPlan) -> int:
    """Everything that a rank collects over its leaves, at its largest."""
    return sum(_site_statistics(plan, layout, site) for site in layer.sites)


def activations(plan: Plan, layer: LayerPlan, *, rows: int, value_bytes: int) -> int:
    """Intermediate values of `rows` tokens, between one site and the next.

    The residual and the normed input, what a site's linears give, once more after rotation or
    activation, and the next site's input; also its float32 copy for statistics or rounding.
    """
    widest = 0
    for site, following in zip(layer.sites, (*layer.sites[1:], None), strict=False):
        out = sum(linear.out_features for linear in site.linears)
        after = 0 if following is None else following.features
        here = (2 * hidden_size(plan) + site.features + 2 * out + after) * value_bytes
        widest = max(widest, here + FLOAT_BYTES * max(site.features, after))
    return rows * widest


def exchange_buffers(plan: Plan, layout: Layout, layer: LayerPlan) -> int:
    """Partial statistics sent (packed and joined) and received, merged ones, chunks on their way.

    The larger of the first two exchange phases.
    """
    own = layer_layout(layer, layout.world_size)
    largest = 0
    for table, copies in (
        (partial_bytes(plan, layout, layer, own), 2),
        (merged_bytes(plan, layout, layer, own), 2),
    ):
        for rank in range(layout.world_size):
            sent = sum(size for other, size in enumerate(table[rank]) if other != rank)
            received = sum(row[rank] for other, row in enumerate(table) if other != rank)
            chunks = min(plan.chunk_bytes, sent) + min(plan.chunk_bytes, received)
            largest = max(largest, copies * (sent + received) + chunks)
    return largest


def solve_buffers(plan: Plan, layer: LayerPlan) -> int:
    """Merged statistics that tasks read, the factor of the largest H, and one task's rows."""
    merged = sum(SiteStatistics.merged_num_bytes(site, plan) for site in layer.sites)
    squares = [FLOAT_BYTES * site.features**2 for site in layer.sites if _has_moment(site)]
    factoring = 3 * max(squares, default=0)  # H permuted, its factor, the identity
    kept = 2 * max(squares, default=0)  # of one site at a time: H whole, its inverse's factor
    rows = max(
        (min(TASK_ROWS, x.out_features) * x.in_features for x in linears_of(layer)), default=0
    )
    return merged + kept + factoring + 6 * FLOAT_BYTES * rows


def own_results(layer: LayerPlan, world_size: int) -> int:
    """Results of a rank's own tasks."""
    return -(-quantized(layer) // world_size)


def result_buffers(layer: LayerPlan, world_size: int) -> int:
    """Own results, all results as bytes, and taken out of them; then joined to linears."""
    return own_results(layer, world_size) + 2 * quantized(layer)


def quantized(layer: LayerPlan) -> int:
    """Codes int8 [O, I], scales float32 [O, G] and zero points int8 [O, G] of all linears."""
    return sum(
        linear.out_features * (linear.in_features + 5 * _groups(linear))
        for linear in linears_of(layer)
        if linear.scheme is not None
    )


def encoded(plan: Plan, layer: LayerPlan) -> int:
    """Tensors of the first format that are not the codes themselves."""
    return _encoded(plan, layer, first=True)


def other_formats(plan: Plan, layer: LayerPlan) -> int:
    """The same of the further formats, which are encoded one after the other."""
    return _encoded(plan, layer, first=False)


def decoded_weights(layer: LayerPlan, *, value_bytes: int) -> int:
    """Weights of the layer that runs quantized, and the float32 steps of the largest one."""
    sizes = [x.out_features * x.in_features for x in linears_of(layer) if x.scheme is not None]
    return sum(sizes) * value_bytes + 2 * FLOAT_BYTES * max(sizes, default=0)


# parts of items


def hidden_size(plan: Plan) -> int:
    """D, the columns of the embedding."""
    return plan.layers[0].source[0].shape[-1]


def item_bytes(plan: Plan) -> int:
    """Bytes of a value in the model's dtype."""
    return DTYPE_BYTES[plan.model_dtype]


def linears_of(layer: LayerPlan) -> Iterator[LinearPlan]:
    """Every linear of a layer."""
    return (linear for site in layer.sites for linear in site.linears)


def _groups(linear: LinearPlan) -> int:
    assert linear.scheme is not None
    size = linear.scheme.weights.group_size
    return linear.in_features // size if size else 1


def _has_moment(site: SitePlan) -> bool:
    return "second_moment" in site.statistics


def _padded_tokens(plan: Plan, layout: Layout) -> int:
    """Of the rank with most of them."""
    return max(
        sum(_rows(plan, index) for index in range(*bounds)) for bounds in layout.micro_batch_ranges
    )


def largest_micro_batch(plan: Plan) -> int:
    """Tokens of it, pads included."""
    return max((_rows(plan, index) for index in range(len(plan.micro_batches))), default=0)


def _rows(plan: Plan, index: int) -> int:
    lengths = plan.micro_batches[index].lengths
    return len(lengths) * max(lengths)


def _site_statistics(plan: Plan, layout: Layout, site: SitePlan) -> int:
    """Small ones as they travel, reservoirs with the rows that wait to be sorted in, H's nodes."""
    total = 0
    for name in site.statistics:
        match name:
            case "ranges":
                total += 8 * site.features
            case "histogram":
                total += 8 << 16
            case "reservoir":
                total += 2 * plan.reservoir_rows * (8 + FLOAT_BYTES * site.features)
            case "second_moment":
                open_leaf = FLOAT_BYTES * site.features**2
                parked = max(
                    _most_parked(start, stop, len(plan.leaves))
                    for start, stop in layout.leaf_ranges
                )
                total += open_leaf + (parked + 1) * node_bytes(site.features)
    return total


@lru_cache(maxsize=1024)
def _most_parked(start: int, stop: int, num_leaves: int) -> int:
    """Most nodes that a rank holds at once while it adds leaves start..stop-1."""
    return max(
        (len(parked_nodes(start, end, num_leaves)) for end in range(start + 1, stop + 1)), default=0
    )


def _encoded(plan: Plan, layer: LayerPlan, *, first: bool) -> int:
    """8-bit codes are written as they are, so their tensor is no copy."""
    sizes = [0]
    for name in plan.formats[:1] if first else plan.formats[1:]:
        sizes.append(
            sum(
                num_bytes(meta)
                for linear in linears_of(layer)
                if linear.scheme is not None
                for meta in FORMATS[name].tensors(linear, plan.model_dtype)
                if not (
                    meta.dtype == "I8" and meta.shape == (linear.out_features, linear.in_features)
                )
            )
        )
    return max(sizes)

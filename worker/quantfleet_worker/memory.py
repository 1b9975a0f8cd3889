"""How much host memory a rank needs above its imports, as a sum that a reader can follow.

Called by preflight, by the choice of the number of ranks and by `quantfleet plan`. Each moment of a
layer is a list of what lives at the same time (see `memory_items`); the sum is that of the largest
moment of any layer.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quantfleet_api.plan import LayerPlan, Plan
from quantfleet_worker import memory_items as items
from quantfleet_worker.plan_facts import keeps_source
from quantfleet_worker.schedule import Layout, make_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """One summand; `name` says what it is, for people."""

    name: str
    num_bytes: int
    once_a_pod: bool = False  # the ranks of a pod share it


LIBRARY_BYTES = 20 << 20
"""Code and tables of torch and its libraries that are mapped when they are first used: what a run
over a model of no size was seen to take."""

Moment = tuple[MemoryItem, ...]


def memory_sum(
    plan: Plan, *, world_size: int, windows: tuple[int, int] | None = None, local_ranks: int = 1
) -> Moment:
    """The items of the largest moment, largest first; empty ones are left out.

    `windows` is the number of evaluation windows and their length in tokens, if there are any.
    `local_ranks` run in one pod: the moment is that in which all of them together need most.
    """
    layout = make_layout(plan, world_size)
    moments = [moment for layer in plan.layers for moment in _of_layer(plan, layout, layer)]
    if windows is not None:
        moments += _of_evaluation(plan, layout, *windows)
    largest = max(moments, key=lambda moment: bytes_of_ranks(moment, local_ranks))
    present = (item for item in largest if item.num_bytes)
    return tuple(sorted(present, key=lambda item: (-item.num_bytes, item.name)))


def total_bytes(moment: Moment) -> int:
    """The sum itself."""
    return sum(item.num_bytes for item in moment)


def bytes_of_ranks(moment: Iterable[MemoryItem], ranks: int) -> int:
    """What so many ranks of one pod need together."""
    return sum(item.num_bytes * (1 if item.once_a_pod else ranks) for item in moment)


def _item(name: str, num_bytes: int) -> MemoryItem:
    return MemoryItem(name=name, num_bytes=num_bytes)


def _shared(name: str, num_bytes: int) -> MemoryItem:
    return MemoryItem(name=name, num_bytes=num_bytes, once_a_pod=True)


def _always(plan: Plan, layout: Layout) -> Moment:
    return (
        _item("libraries, once they are used", LIBRARY_BYTES),
        _item("token ids", items.token_ids(plan, layout)),
        _item("hidden states of the rank's micro-batches", items.carry(plan, layout)),
    )


def _of_layer(plan: Plan, layout: Layout, layer: LayerPlan) -> Iterator[Moment]:
    """What lives at the same time while a layer is processed, in the order of its steps."""
    behind = (
        *_always(plan, layout),
        _shared("weights of the next layer", items.next_weights(plan, layer)),
        _shared("weights kept for the head", items.kept(plan) if layer.kind == "decoder" else 0),
    )
    always = (*behind, _shared(f"weights of {layer.name}", items.weights(layer)))
    if keeps_source(plan, layer):
        behind = always
    running = _running(plan, layer)
    own = _item("quantized layer, encoded", items.quantized(layer) + items.encoded(plan, layer))
    if any(site.statistics for site in layer.sites):
        before = _item(
            "the layer before, until it is written", items.being_written(plan, layer.index - 1)
        )
        collected = _item("statistics", items.statistics(plan, layout, layer))
        moving = _item("buffers of the exchange", items.exchange_buffers(plan, layout, layer))
        yield (*always, before, collected, running)
        yield (*always, before, collected, moving)
    if any(linear.scheme for linear in items.linears_of(layer)):
        ranks = layout.world_size
        found = _item("results", items.own_results(layer, ranks))
        yield (*always, _item("solving", items.solve_buffers(plan, layer)), found)
        yield (*always, _item("results and their transfer", items.result_buffers(layer, ranks)))
    if plan.micro_batches and plan.propagation == "Quantized" and layer.kind == "decoder":
        results = _item("results", items.quantized(layer))
        decoded = _item(
            "decoded weights", items.decoded_weights(layer, value_bytes=items.item_bytes(plan))
        )
        yield (*behind, own, results, decoded, running)
    others = _item("encoding of further formats", items.other_formats(plan, layer))
    yield (*behind, own, _item("results", items.quantized(layer)), others)


def _running(plan: Plan, layer: LayerPlan) -> MemoryItem:
    rows, value_bytes = items.largest_micro_batch(plan), items.item_bytes(plan)
    size = items.activations(plan, layer, rows=rows, value_bytes=value_bytes)
    return _item("activations of a micro-batch", size)


def _of_evaluation(plan: Plan, layout: Layout, count: int, length: int) -> Iterator[Moment]:
    """Both models run on the rank's windows, in float32, a layer at a time."""
    embedding, *decoders, head = plan.layers
    vocabulary, hidden_size = embedding.source[0].shape
    own_windows = -(-count // layout.world_size)
    states = 2 * own_windows * length * hidden_size * items.FLOAT_BYTES
    always = (
        *_always(plan, layout),
        _item("embedding in float32", vocabulary * hidden_size * items.FLOAT_BYTES),
        _item("hidden states of the rank's windows", states),
    )
    for layer in decoders:
        running = items.activations(plan, layer, rows=length, value_bytes=items.FLOAT_BYTES)
        yield (
            *always,
            _shared(f"weights of {layer.name}", items.weights(layer)),
            _shared("weights of the next layer", items.next_weights(plan, layer)),
            _shared("weights kept for the head", items.kept(plan)),
            _item("layer as written", items.quantized(layer) + items.encoded(plan, layer)),
            _item("decoded weights", items.decoded_weights(layer, value_bytes=items.FLOAT_BYTES)),
            _item("activations of a window", running),
        )
    yield (
        *always,
        _shared("head", items.weights(head)),
        _item("head in float32", items.in_float32(head)),
        _item("head as written", items.quantized(head) + items.encoded(plan, head)),
        _item("decoded head", items.decoded_weights(head, value_bytes=items.FLOAT_BYTES)),
        _item("logits of a window", 2 * length * vocabulary * items.FLOAT_BYTES),
    )

"""One layer, step by step; every rank runs this in the same order.

The numbers are those of `process_layer`, which reads as the list of steps. What a step computes is
in `layer_passes`, `solve`, `assembly` and `wire`; here is only who hands what to whom.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic

import torch
from torch import Tensor

from quantfleet_api.plan import LayerPlan, LinearPlan
from quantfleet_worker import assembly, layer_passes, wire
from quantfleet_worker.commit import Finished, submit
from quantfleet_worker.engine import Engine
from quantfleet_worker.journal import note_begun
from quantfleet_worker.plan_facts import advances, keeps_source, observes
from quantfleet_worker.schedule import LayerLayout, layer_layout
from quantfleet_worker.solve import (
    SiteSolution,
    SmoothedStatistics,
    TaskSolution,
    row_divisors,
    smoothed_weight,
    solve_site,
    solve_task,
)
from quantfleet_worker.statistics.site import SiteStatistics


def process_layer(engine: Engine, layer: LayerPlan) -> None:
    """Take one layer from its source to its files.

    1. Its weights are here; the next layer's are being read.
    2. Observed pass: the float layer over this rank's micro-batches.
    3. Exchange: each site's statistics meet at its owner.
    4. Owners solve sites, then tasks.
    5. Results are exchanged,
    6. encoded, and decoded again: what runs from here on is what a server will compute.
    7. Quantized pass: the next layer's input (with `Float` it came out of step 2).
    8. Files and activations are written in the background and committed.
    9. Progress is reported on the way.
    """
    engine.exchange.next_layer()
    source = engine.take(layer)  # 1
    engine.layer_started = monotonic()
    own = layer_layout(layer, engine.layout.world_size)
    statistics = layer_passes.observe(engine, layer, source)  # 2
    readable, solutions = _meet(engine, layer, own, source, statistics)  # 3, 4
    del statistics
    if engine.rank == 0:
        note_begun(engine.folder, layer.index)
    with engine.clock.measure("solve"):
        solved = _solve(engine, layer, own, source, readable, solutions)
    del readable
    notes = tuple(note for result in solved.values() for note in result.notes)
    results = _exchange_results(engine, layer, own, solved)  # 5
    del solved
    finished = _assemble(engine, layer, own, source, solutions, results, notes)  # 6
    del results, source
    _advance(engine, layer, finished)  # 7
    submit(engine, layer, own, finished)  # 8


def _meet(
    engine: Engine,
    layer: LayerPlan,
    own: LayerLayout,
    source: Mapping[str, Tensor],
    statistics: list[SiteStatistics],
) -> tuple[dict[int, SiteStatistics], dict[int, SiteSolution]]:
    """Steps 3 and 4: phases 1 and 2 of the exchange, and the owners' work between them."""
    if not observes(layer):
        engine.writer.wait(layer.index - 1, engine.should_stop)
        return (
            dict(enumerate(statistics)),
            {index: SiteSolution() for index in range(len(layer.sites))},
        )
    plan, layout = engine.plan, engine.layout
    with _phase(engine, "partials"):
        merged = wire.exchange_partials(engine.exchange, plan, layout, layer, own, statistics)
    with engine.clock.measure("solve"):
        solved = {
            index: solve_site(layer.sites[index], found, _weights(layer, index, source))
            for index, found in merged.items()
        }
    # law L5: the layer before is committed before this one's tasks are solved
    with engine.clock.measure("idle"):
        engine.writer.wait(layer.index - 1, engine.should_stop)
    with _phase(engine, "solutions"):
        solutions, readable = wire.exchange_solutions(
            engine.exchange, plan, layout, layer, own, solved, merged
        )
    return readable, solutions


def _weights(layer: LayerPlan, site: int, source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {linear.local: source[f"{linear.name}.weight"] for linear in layer.sites[site].linears}


@contextmanager
def _phase(engine: Engine, name: str) -> Iterator[None]:
    """One exchange phase: its transfers count as exchange, waiting for peers as idle."""
    with engine.clock.measure("idle"):
        engine.exchange.wait_for_all(name)
    with engine.clock.measure("exchange"):
        yield


def _solve(
    engine: Engine,
    layer: LayerPlan,
    own: LayerLayout,
    source: Mapping[str, Tensor],
    readable: Mapping[int, SiteStatistics],
    solutions: Mapping[int, SiteSolution],
) -> dict[int, TaskSolution]:
    """Step 4: this rank's tasks, by index."""
    divisors = row_divisors(layer, solutions)
    device, factoring = engine.device.torch_device, engine.device.factoring
    site, behind = -1, None  # tasks go site by site: one site's H is whole at a time
    solved: dict[int, TaskSolution] = {}
    for index in own.tasks_of(engine.rank):
        engine.should_stop()
        task = own.tasks[index]
        linear = layer.sites[task.site].linears[task.linear]
        factors, divisor = solutions[task.site].factors, divisors.get(linear.local)
        if task.site != site or behind is None:
            site, behind = task.site, None
            behind = SmoothedStatistics(
                readable[task.site], factors, device=device, factoring=factoring
            )
        rows = slice(task.start, task.stop)
        W_RI = smoothed_weight(
            source[f"{linear.name}.weight"][rows],
            factors,
            None if divisor is None else divisor[rows],
        )
        solved[index] = solve_task(
            linear, W_RI.to(device), behind, scale_dtype=_scale_dtype(engine, linear)
        )
    return solved


def _exchange_results(
    engine: Engine, layer: LayerPlan, own: LayerLayout, solved: Mapping[int, TaskSolution]
) -> list[TaskSolution]:
    """Step 5: everyone's results, in the order of tasks."""
    if not own.tasks:
        return []
    with _phase(engine, "results"):
        return wire.exchange_results(engine.exchange, layer, own, solved)


def _scale_dtype(engine: Engine, linear: LinearPlan) -> torch.dtype:
    """4-bit scales are stored in the model's dtype, and so chosen in it; 8-bit in float32."""
    assert linear.scheme is not None
    return engine.dtype if linear.scheme.weights.bits == 4 else torch.float32


def _assemble(
    engine: Engine,
    layer: LayerPlan,
    own: LayerLayout,
    source: Mapping[str, Tensor],
    solutions: Mapping[int, SiteSolution],
    results: Sequence[TaskSolution],
    notes: tuple[str, ...],
) -> Finished:
    """Step 6: the layer as the first format holds it, and all that is known of it."""
    with engine.clock.measure("encode"):
        quantized = assembly.quantized_linears(layer, own, results, solutions, source)
        return Finished(
            floats=assembly.float_tensors(layer, solutions, source),
            source=source if keeps_source(engine.plan, layer) else {},
            quantized=quantized,
            encoded=assembly.encoded_tensors(
                engine.first_format, layer, quantized, engine.plan.model_dtype
            ),
            sidecar=assembly.sidecar_tensors(engine.first_format, layer, quantized),
            errors=assembly.summed_errors(layer, own, results),
            solutions=solutions,
            notes=notes,
        )


def _advance(engine: Engine, layer: LayerPlan, finished: Finished) -> None:
    """Step 7: make the carry that the next layer observes."""
    if not advances(engine.plan, layer):
        return
    if layer.kind == "embedding":
        layer_passes.embed(engine, finished.source)
    elif engine.plan.propagation == "Quantized":
        layer_passes.advance_quantized(
            engine, layer, finished.floats, finished.encoded, finished.sidecar
        )
    elif not observes(layer):
        layer_passes.advance_float(engine, layer, finished.source)

"""One layer, step by step; every rank runs this in the same order.

The numbers are those of `process_layer`, which reads as the list of steps. What a step computes is
in `passes`, `solve`, `assembly` and `wire`; here is only who hands what to whom.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from quantfleet_api.plan import LayerPlan, LinearPlan
from quantfleet_worker import assembly, passes, wire
from quantfleet_worker.commit import Finished, submit
from quantfleet_worker.engine import Engine, advances, observes
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.schedule import LayerLayout, layer_layout
from quantfleet_worker.schemes import TORCH_DTYPES, QuantizedLinear
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
    own = layer_layout(layer, engine.layout.world_size)
    statistics = observe(engine, layer, source)  # 2
    readable, solutions = _meet(engine, layer, own, source, statistics)  # 3, 4
    del statistics
    results, notes = _solve(engine, layer, own, source, readable, solutions)  # 4, 5
    del readable
    with engine.clock.measure("encode"):  # 6
        quantized = assembly.quantized_linears(layer, own, results, solutions, source)
        floats = assembly.float_tensors(layer, solutions, source)
        encoded = assembly.encoded_tensors(
            engine.first_format, layer, quantized, engine.plan.model_dtype
        )
    _advance(engine, layer, source, floats, quantized, encoded)  # 7
    submit(  # 8
        engine,
        layer,
        own,
        Finished(
            floats=floats,
            source=source,
            quantized=quantized,
            encoded=encoded,
            results=results,
            solutions=solutions,
            notes=notes,
        ),
    )


def observe(engine: Engine, layer: LayerPlan, source: Mapping[str, Tensor]) -> list[SiteStatistics]:
    """Step 2; with `Float` propagation the pass also makes the next carry."""
    plan = engine.plan
    statistics = [SiteStatistics.identity(site, plan) for site in layer.sites]
    if not observes(layer):
        return statistics
    watch = passes.Watch(
        [
            found if site.statistics else None
            for site, found in zip(layer.sites, statistics, strict=True)
        ]
    )
    if layer.kind == "head":
        _run_head(engine, layer, source, watch)
    else:
        advance = plan.propagation == "Float" and advances(plan, layer)
        module = _float_module(engine, layer, source)
        with passes.watched(module, layer, watch, advance=advance):
            run_micro_batches(engine, module, watch=watch, advance=advance, pass_index=1)
    engine.clock.move(watch.seconds, source="forward", target="statistics")
    return statistics


def _run_head(
    engine: Engine, layer: LayerPlan, source: Mapping[str, Tensor], watch: passes.Watch
) -> None:
    """The head's site is the normed output of the last layer."""
    norm = next(source[name] for name in layer.passed_through if source[name].ndim == 1)
    for index, hidden in engine.carry.items():
        watch.rows = engine.rows[index]
        with engine.clock.measure("forward"):
            watch.see(0, engine.blocks.final_norm(norm.to(engine.dtype), hidden))
        _finish_leaf(engine, index, watch)


def run_micro_batches(
    engine: Engine,
    module: torch.nn.Module,
    *,
    watch: passes.Watch | None,
    advance: bool,
    pass_index: int,
) -> None:
    """All micro-batches of this rank through one layer; with `advance` the carry moves on."""
    device = engine.device.torch_device
    for done, index in enumerate(engine.layout.micro_batches_of(engine.rank)):
        engine.should_stop()
        if watch is not None:
            watch.rows = engine.rows[index]
        with engine.clock.measure("forward"):
            output = engine.blocks.run(module, engine.carry[index].to(device))
            if advance:
                engine.carry[index] = output.cpu()
        if watch is not None:
            _finish_leaf(engine, index, watch)
        tokens = sum(engine.plan.micro_batches[index].lengths)
        engine.progress(micro_batch=done + 1, pass_index=pass_index, tokens=tokens)


def _finish_leaf(engine: Engine, index: int, watch: passes.Watch) -> None:
    leaf = engine.rows[index].leaf
    if index + 1 == engine.plan.leaves[leaf][1]:
        with engine.clock.measure("statistics"):
            for statistics in watch.statistics:
                if statistics is not None:
                    statistics.finish_leaf()


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
) -> tuple[list[TaskSolution], tuple[str, ...]]:
    """Steps 4 and 5: this rank's tasks, then everyone's results and this rank's notes."""
    if not own.tasks:
        return [], ()
    divisors = row_divisors(layer, solutions)
    behind: dict[int, SmoothedStatistics] = {}
    solved: dict[int, TaskSolution] = {}
    with engine.clock.measure("solve"):
        for index in own.tasks_of(engine.rank):
            engine.should_stop()
            task = own.tasks[index]
            linear = layer.sites[task.site].linears[task.linear]
            factors = solutions[task.site].factors
            if task.site not in behind:
                behind[task.site] = SmoothedStatistics(readable[task.site], factors)
            divisor = divisors.get(linear.local)
            rows = slice(task.start, task.stop)
            solved[index] = solve_task(
                linear,
                smoothed_weight(
                    source[f"{linear.name}.weight"][rows],
                    factors,
                    None if divisor is None else divisor[rows],
                ),
                behind[task.site],
                scale_dtype=_scale_dtype(engine, linear),
            )
    with _phase(engine, "results"):
        results = wire.exchange_results(engine.exchange, layer, own, solved)
    return results, tuple(note for result in solved.values() for note in result.notes)


def _scale_dtype(engine: Engine, linear: LinearPlan) -> torch.dtype:
    """4-bit scales are stored in the model's dtype, and so chosen in it; 8-bit in float32."""
    assert linear.scheme is not None
    return engine.dtype if linear.scheme.weights.bits == 4 else torch.float32


def _advance(
    engine: Engine,
    layer: LayerPlan,
    source: Mapping[str, Tensor],
    floats: Mapping[str, Tensor],
    quantized: Mapping[str, QuantizedLinear],
    encoded: Mapping[str, Tensor],
) -> None:
    """Step 7: make the carry that the next layer observes."""
    if not advances(engine.plan, layer):
        return
    if layer.kind == "embedding":
        embed(engine, source)
    elif engine.plan.propagation == "Quantized":
        sidecar = assembly.sidecar_tensors(engine.first_format, layer, quantized)
        advance_quantized(engine, layer, floats, encoded, sidecar)
    elif not observes(layer):
        advance_float(engine, layer, source)


def embed(engine: Engine, source: Mapping[str, Tensor]) -> None:
    """The first carry: embedded token ids."""
    weight = next(iter(source.values()))
    for index, ids in engine.ids.items():
        with engine.clock.measure("forward"):
            engine.carry[index] = engine.blocks.embed(weight, ids).to(engine.dtype)


def advance_float(engine: Engine, layer: LayerPlan, source: Mapping[str, Tensor]) -> None:
    """A pass of the float layer that nobody observes: on resume, or where nothing is collected."""
    module = _float_module(engine, layer, source)
    run_micro_batches(engine, module, watch=None, advance=True, pass_index=1)


def _float_module(
    engine: Engine, layer: LayerPlan, source: Mapping[str, Tensor]
) -> torch.nn.Module:
    module = engine.blocks.decoder(layer.index - 1)
    engine.blocks.assign(
        module,
        {
            assembly.local_name(layer, name): tensor.to(engine.dtype)
            for name, tensor in source.items()
        },
    )
    return module


def advance_quantized(
    engine: Engine,
    layer: LayerPlan,
    floats: Mapping[str, Tensor],
    encoded: Mapping[str, Tensor],
    sidecar: Mapping[str, Tensor],
) -> None:
    """The pass with the decoded layer, live or on resume."""
    with engine.clock.measure("encode"):
        decoded = assembly.decoded_linears(
            FORMATS[engine.plan.formats[0]], layer, encoded, sidecar, engine.plan.model_dtype
        )
        module = engine.blocks.decoder(layer.index - 1)
        engine.blocks.assign(
            module,
            assembly.module_parameters(
                layer, floats, decoded, TORCH_DTYPES[engine.plan.model_dtype]
            ),
        )
    with passes.served(module, layer, decoded):
        run_micro_batches(engine, module, watch=None, advance=True, pass_index=2)

"""One rank's micro-batches through one layer: observed, quantized, or on resume.

Called by `layer_steps.py` (steps 2 and 7) and by `resume.py`. Moves the engine's carry; hooks and
the choice of rows are in `passes.py`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from quantfleet_api.plan import LayerPlan
from quantfleet_worker import assembly, passes
from quantfleet_worker import device as devices
from quantfleet_worker.engine import Engine
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.plan_facts import advances, observes
from quantfleet_worker.statistics.site import SiteStatistics


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
    samples = 0
    for done, index in enumerate(engine.layout.micro_batches_of(engine.rank)):
        engine.should_stop()
        if watch is not None:
            watch.rows = engine.rows[index]
        with engine.clock.measure("forward"):
            output = engine.blocks.run(module, engine.carry[index].to(device))
            devices.synchronize(engine.device)
            if advance:
                engine.carry[index] = output.cpu()
        if watch is not None:
            _finish_leaf(engine, index, watch)
        batch = engine.plan.micro_batches[index]
        samples += len(batch.samples)
        engine.progress(
            micro_batch=done + 1,
            samples=samples,
            pass_index=pass_index,
            tokens=sum(batch.lengths),
        )


def _finish_leaf(engine: Engine, index: int, watch: passes.Watch) -> None:
    leaf = engine.rows[index].leaf
    if index + 1 == engine.plan.leaves[leaf][1]:
        with engine.clock.measure("statistics"):
            for statistics in watch.statistics:
                if statistics is not None:
                    statistics.finish_leaf()


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
            assembly.local_name(layer, name): tensor.to(engine.device.torch_device, engine.dtype)
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
                layer, floats, decoded, engine.dtype, device=engine.device.torch_device
            ),
        )
    with passes.served(module, layer, decoded):
        run_micro_batches(engine, module, watch=None, advance=True, pass_index=2)

"""What is written is checked before it is published: every byte, and what the model is worth.

Called by `run.py` on every rank after the last layer is committed; the work is split over ranks.
`verify_folder` is what `quantfleet verify` runs on any published folder.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from quantfleet_api.errors import OutputUnwritable
from quantfleet_api.plan import LayerPlan
from quantfleet_worker import assembly, passes, published
from quantfleet_worker.engine import Engine, with_head_weight
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.journal import read_journal
from quantfleet_worker.models.layers import Blocks
from quantfleet_worker.own_files import file_digest
from quantfleet_worker.plan_facts import kept_for_head
from quantfleet_worker.pod_memory import PodReader
from quantfleet_worker.resume import read_layer
from quantfleet_worker.schemes import QuantizedLinear, dequantized_weight
from quantfleet_worker.source import Prefetcher, Reader


def verify_folder(path: Path) -> list[str]:
    """Problems of a published folder, one line each; an empty list is a good folder."""
    return published.check(path)


def verify_files(engine: Engine) -> None:
    """Read every file back and compare it with what was committed; ranks share the files."""
    journal = read_journal(engine.folder)
    assert journal is not None, "layers are committed"
    records = sorted(
        (name, record) for layer in journal.layers for name, record in layer.files.items()
    )
    with engine.clock.measure("verify"):
        for name, record in records[engine.rank :: engine.layout.world_size]:
            engine.should_stop()
            path = engine.folder.path / name
            if file_digest(path) != record.sha256:
                raise OutputUnwritable(f"{path}: what was read back is not what was written")
    engine.exchange.put(f"verified/{engine.rank}", "yes")
    for rank in range(engine.layout.world_size):
        engine.exchange.get(f"verified/{rank}")


CPU = torch.device("cpu")
"""Evaluation runs on the host: it is short, and its figure should not depend on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexities:
    """On the evaluation's windows: exp of the mean negative log-likelihood of a token."""

    float_model: float
    quantized: float
    num_windows: int
    window_length: int
    window_losses: tuple[tuple[float, float], ...]  # mean of a window's tokens: float, quantized

    @property
    def ratio(self) -> float:
        """Quantized over float."""
        return self.quantized / self.float_model


def evaluate(engine: Engine) -> Perplexities | None:
    """Perplexity of the source and of what was written, layer by layer, in float32.

    Windows are split over the ranks; a window's loss does not depend on who computes it, and the
    losses are added in the order of windows.
    """
    if engine.windows is None:
        return None
    engine.carry.clear()
    count, length = engine.windows.shape
    own = _windows_of(engine, engine.rank)
    with engine.clock.measure("verify"):
        losses = _losses(engine, engine.windows[own.start : own.stop])
    engine.exchange.put(f"losses/{engine.rank}", json.dumps(losses))
    pairs = [
        pair
        for rank in range(engine.layout.world_size)
        for pair in json.loads(engine.exchange.get(f"losses/{rank}"))
    ]
    predicted = count * (length - 1)
    return Perplexities(
        float_model=_perplexity(sum(pair[0] for pair in pairs) / predicted),
        quantized=_perplexity(sum(pair[1] for pair in pairs) / predicted),
        num_windows=count,
        window_length=length,
        window_losses=tuple((pair[0] / (length - 1), pair[1] / (length - 1)) for pair in pairs),
    )


def _windows_of(engine: Engine, rank: int) -> range:
    assert engine.windows is not None, "there is an evaluation"
    count, ranks = len(engine.windows), engine.layout.world_size
    return range(rank * count // ranks, (rank + 1) * count // ranks)


def _measuring(engine: Engine) -> list[int]:
    """Ranks of this pod that have a window, and so read the weights."""
    return [rank for rank in engine.local_ranks if _windows_of(engine, rank)]


def _perplexity(loss: float) -> float:
    """exp of a mean loss; infinite where that of a broken model is beyond any float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _losses(engine: Engine, windows: Tensor) -> list[tuple[float, float]]:
    """Negative log-likelihood of each window: (float model, quantized model)."""
    if len(windows) == 0:
        return []
    blocks = Blocks(engine.blocks.family, engine.checkpoint.config, torch.float32)
    with Reader(engine.checkpoint.folder, engine.checkpoint.tensors) as storage:
        twice = {tensor.name for tensor in kept_for_head(engine.plan)}
        members = _measuring(engine)
        reader = PodReader(storage, engine.exchange, members, name="evaluation", twice=twice)
        prefetcher = Prefetcher(reader)
        embedding, *decoders, head = engine.plan.layers
        weight = next(iter(reader.read([t.name for t in embedding.source]).values()))
        weight = weight.to(torch.float32)
        as_float = [blocks.embed(weight, window[None]) for window in windows]
        as_quantized = list(as_float)
        if decoders:
            prefetcher.start([tensor.name for tensor in decoders[0].source])
        for layer in decoders:
            source = prefetcher.take()
            if layer.index < len(decoders):
                prefetcher.start([t.name for t in engine.plan.layers[layer.index + 1].source])
            engine.progress(message=f"measuring {layer.name}")
            _advance_float(engine, blocks, layer, source, as_float)
            _advance_quantized(engine, blocks, layer, as_quantized)
        source = with_head_weight(head, reader.read([tensor.name for tensor in head.source]))
        reader.close()
        engine.evaluation_bytes = storage.bytes_read
    return _head_losses(engine, blocks, windows, source, weight, as_float, as_quantized)


def _advance_float(
    engine: Engine,
    blocks: Blocks,
    layer: LayerPlan,
    source: Mapping[str, Tensor],
    hidden: list[Tensor],
) -> None:
    module = blocks.decoder(layer.index - 1)
    blocks.assign(
        module,
        {assembly.local_name(layer, k): v.to(torch.float32) for k, v in source.items()},
    )
    _run_all(engine, blocks, module, hidden)


def _advance_quantized(
    engine: Engine, blocks: Blocks, layer: LayerPlan, hidden: list[Tensor]
) -> None:
    tensors, decoded = _decoded(engine, layer)
    names = {*layer.transformed, *layer.passed_through}
    floats = {name: tensor for name, tensor in tensors.items() if name in names}
    module = blocks.decoder(layer.index - 1)
    blocks.assign(
        module, assembly.module_parameters(layer, floats, decoded, torch.float32, device=CPU)
    )
    with passes.served(module, layer, decoded):
        _run_all(engine, blocks, module, hidden)


def _decoded(
    engine: Engine, layer: LayerPlan
) -> tuple[dict[str, Tensor], dict[str, QuantizedLinear]]:
    tensors, sidecar = read_layer(engine, layer)
    format = FORMATS[engine.plan.formats[0]]
    return tensors, assembly.decoded_linears(
        format, layer, tensors, sidecar, engine.plan.model_dtype
    )


def _run_all(engine: Engine, blocks: Blocks, module: nn.Module, hidden: list[Tensor]) -> None:
    for index, before in enumerate(hidden):
        engine.should_stop()
        hidden[index] = blocks.run(module, before)


def _head_losses(
    engine: Engine,
    blocks: Blocks,
    windows: Tensor,
    source: Mapping[str, Tensor],
    embedding: Tensor,
    as_float: list[Tensor],
    as_quantized: list[Tensor],
) -> list[tuple[float, float]]:
    head = engine.plan.layers[-1]
    norm = next(source[name] for name in head.passed_through if source[name].ndim == 1)
    norm = norm.to(torch.float32)
    own = source.get(f"{engine.blocks.family.head}.weight")
    weight = embedding if own is None else own.to(torch.float32)
    linears = assembly.linears_of(head)
    served, quantizer = weight, None
    if linears:
        decoded = _decoded(engine, head)[1][linears[0].name]
        served = dequantized_weight(decoded)
        assert linears[0].scheme is not None
        scheme = linears[0].scheme.activations
        quantizer = None if scheme is None else passes.activation_quantizer(scheme, decoded)
    losses: list[tuple[float, float]] = []
    for window, left, right in zip(windows, as_float, as_quantized, strict=True):
        engine.should_stop()
        normed = blocks.final_norm(norm, right)
        normed = normed if quantizer is None else quantizer(normed)
        losses.append(
            (
                _loss(blocks.head(weight, blocks.final_norm(norm, left)), window),
                _loss(blocks.head(served, normed), window),
            )
        )
    return losses


def _loss(logits_1LV: Tensor, window_L: Tensor) -> float:
    """Sum of the negative log-likelihoods of tokens 1 .. L-1."""
    loss = nn.functional.cross_entropy(logits_1LV[0, :-1], window_L[1:], reduction="none")
    return float(loss.to(torch.float64).sum())

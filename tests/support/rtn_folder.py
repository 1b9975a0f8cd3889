"""A quantized folder of a tiny model, made in a few lines: plain rounding, no engine.

For tests of formats and of what reads published folders. `Recipe` says the scheme of each linear;
`quantize` rounds; `write_folder` writes one format's folder through the format's own functions.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from quantfleet_api.plan import (
    ActivationScheme,
    FilePlan,
    FormatName,
    LayerPlan,
    LinearPlan,
    LinearScheme,
    Plan,
    SampleCount,
    SchemeName,
    SitePlan,
    TensorMeta,
    WeightScheme,
)
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.formats.safetensors_file import header_order, write
from quantfleet_worker.schemes import TORCH_DTYPES, QuantizedLinear

Recipe = Callable[[str], LinearScheme | None]

DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_SITES = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


def scheme(
    name: SchemeName, *, symmetric: bool = True, group_size: int = 0, input_symmetric: bool = True
) -> LinearScheme:
    """A resolved scheme; `symmetric` and `group_size` are the weight's."""
    kinds: dict[str, Any] = {"W8A8": "static", "W8A8Dynamic": "dynamic"}
    activations = None
    if name in kinds:
        activations = ActivationScheme(kind=kinds[name], symmetric=input_symmetric)
    return LinearScheme(
        name=name,
        weights=WeightScheme(
            bits=4 if name == "W4A16" else 8, symmetric=symmetric, group_size=group_size
        ),
        activations=activations,
    )


def everywhere(found: LinearScheme) -> Recipe:
    """That scheme for every linear but the head."""
    return lambda name: None if name == "lm_head" else found


def source_tensors(source: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint of one file."""
    return load_file(source / "model.safetensors")


def make_plan(source: Path, recipe: Recipe, formats: tuple[FormatName, ...]) -> Plan:
    """The plan of a tiny checkpoint: embedding, decoder layers, head; one file a layer."""
    config = json.loads((source / "config.json").read_text())
    tensors = source_tensors(source)
    num_layers = config["num_hidden_layers"]
    dtype = DTYPE_NAMES[tensors["model.norm.weight"].dtype]
    tied = "lm_head.weight" not in tensors
    layers = []
    for index in range(num_layers + 2):
        name, prefix = f"model.layers.{index - 1}", f"model.layers.{index - 1}."
        if index == 0:
            name, prefix = "model.embed_tokens", "model.embed_tokens."
        elif index == num_layers + 1:
            name, prefix = "head", "(model.norm|lm_head)."
        own = [key for key in tensors if re.match(prefix, key)]
        sites = _sites(name, own, tensors, recipe)
        kind: Literal["embedding", "decoder", "head"] = "decoder"
        if index in (0, num_layers + 1):
            kind = "head" if index else "embedding"
        layers.append(
            LayerPlan(
                index=index,
                name=name,
                kind=kind,
                source=(),
                sites=sites,
                transformed=(),
                passed_through=(),
                derived=(),
                files={
                    name: (
                        _file(name, index, num_layers + 2, kind, tied, dtype, own, tensors, sites),
                    )
                    for name in formats
                },
            )
        )
    return _plan(layers, formats=formats, dtype=dtype, tied=tied)


def quantize(
    plan: Plan, tensors: Mapping[str, Tensor], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, QuantizedLinear]:
    """Every linear of the plan that has a scheme, rounded to nearest; `ranges` by linear name."""
    linears = [x for layer in plan.layers for site in layer.sites for x in site.linears]
    return {
        linear.name: round_linear(
            linear,
            tensors[f"{linear.name}.weight"].float(),
            tensors.get(f"{linear.name}.bias"),
            ranges.get(linear.name, (-1.0, 1.0)),
            TORCH_DTYPES[plan.model_dtype],
        )
        for linear in linears
        if linear.scheme is not None
    }


def round_linear(
    linear: LinearPlan,
    weight: Tensor,
    bias: Tensor | None,
    input_range: tuple[float, float],
    model_dtype: torch.dtype,
) -> QuantizedLinear:
    """Round to nearest: weight float32 [O, I] -> codes and scales."""
    assert linear.scheme is not None
    weights, activations = linear.scheme.weights, linear.scheme.activations
    group = weights.group_size or linear.in_features
    grouped = weight.reshape(linear.out_features, -1, group)
    low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
    scale, zero_point = _parameters(low, high, bits=weights.bits, symmetric=weights.symmetric)
    if weights.bits == 4:
        scale = scale.to(model_dtype).float()
    shift = 0 if zero_point is None else zero_point.unsqueeze(2)
    limit = 2 ** (weights.bits - 1)
    codes = torch.round(grouped / scale.unsqueeze(2) + shift).clamp(-limit, limit - 1)
    input_scale = input_zero_point = None
    if activations is not None and activations.kind == "static":
        edges = (torch.tensor([edge]) for edge in input_range)
        input_scale, input_zero_point = _parameters(*edges, bits=8, symmetric=activations.symmetric)
    return QuantizedLinear(
        codes=codes.flatten(1).to(torch.int8),
        scale=scale,
        zero_point=None if zero_point is None else zero_point.to(torch.int8),
        bias=None if bias is None else bias.float(),
        input_scale=input_scale,
        input_zero_point=None if input_zero_point is None else input_zero_point.to(torch.int8),
    )


def write_folder(
    folder: Path,
    source: Path,
    plan: Plan,
    format_name: FormatName,
    quantized: Mapping[str, QuantizedLinear],
) -> Path:
    """One format's folder, complete but for the tokenizer; returns it."""
    folder.mkdir(parents=True)
    found, tensors = FORMATS[format_name], dict(source_tensors(source))
    for layer in plan.layers:
        for linear in (x for site in layer.sites for x in site.linears if x.scheme is not None):
            tensors |= found.encode(linear, quantized[linear.name], plan.model_dtype)
    if plan.tied_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    for file in (file for layer in plan.layers for file in layer.files[format_name]):
        with (folder / file.name).open("wb") as out:
            write(out, file, tensors)
    config = json.loads((source / "config.json").read_text())
    for name, content in found.metadata_files(plan, config).items():
        (folder / name).write_bytes(content)
    return folder


def _sites(
    layer: str, own: list[str], tensors: Mapping[str, Tensor], recipe: Recipe
) -> tuple[SitePlan, ...]:
    wanted = [("lm_head",)] if layer == "head" else _SITES if ".layers." in layer else ()
    modules = sorted(key.removesuffix(".weight") for key in own if key.endswith(".weight"))
    sites = []
    for leaves in wanted:
        linears = tuple(
            LinearPlan(
                name=name,
                local=name.removeprefix(f"{layer}."),
                out_features=tensors[f"{name}.weight"].shape[0],
                in_features=tensors[f"{name}.weight"].shape[1],
                bias=f"{name}.bias" in tensors,
                scheme=recipe(name),
            )
            for name in modules
            if name.rpartition(".")[2] in leaves
        )
        if linears:
            name, features = f"{layer}.{leaves[0]}_input", linears[0].in_features
            sites.append(SitePlan(name=name, features=features, linears=linears, statistics=()))
    return tuple(sites)


def _file(
    format_name: FormatName,
    index: int,
    num_files: int,
    kind: str,
    tied: bool,
    dtype: Any,
    own: list[str],
    tensors: Mapping[str, Tensor],
    sites: tuple[SitePlan, ...],
) -> FilePlan:
    found = FORMATS[format_name]
    linears = [x for site in sites for x in site.linears if x.scheme is not None]
    replaced = {f"{x.name}.{leaf}" for x in linears for leaf in ("weight", "bias")}
    metas = [_meta(name, tensors[name]) for name in own if name not in replaced]
    metas += [meta for linear in linears for meta in found.tensors(linear, dtype)]
    if kind == "head":
        embedding = _meta("model.embed_tokens.weight", tensors["model.embed_tokens.weight"])
        extra = found.extra_tensors(embedding, head="lm_head", tied=tied, head_quantized=False)
        metas += [derived.meta for derived in extra]
    return FilePlan(name=found.file_names(num_files)[index], tensors=header_order(metas))


def _meta(name: str, tensor: Tensor) -> TensorMeta:
    return TensorMeta(name=name, dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape))


def _parameters(
    low: Tensor, high: Tensor, *, bits: int, symmetric: bool
) -> tuple[Tensor, Tensor | None]:
    levels, lowest = 2**bits - 1, -(2 ** (bits - 1))
    if symmetric:
        return torch.maximum(-low, high) / (levels / 2), None
    scale = (high - low) / levels
    return scale, torch.round(lowest - low / scale).clamp(lowest, -lowest - 1)


def _plan(layers: list[LayerPlan], *, formats: Any, dtype: Any, tied: bool) -> Plan:
    counts = dict.fromkeys(SampleCount.model_fields, 0)
    return Plan(
        version=1,
        engine="test",
        model_digest="",
        data_digest="",
        recipe_digest="",
        family="test",
        model_dtype=dtype,
        tied_embeddings=tied,
        formats=formats,
        propagation="Float",
        samples=SampleCount(**counts),
        micro_batches=(),
        leaves=(),
        reservoir_rows=0,
        chunk_bytes=1,
        layers=tuple(layers),
        dropped=(),
        copied_files=(),
    )

"""The Ascend format: what vllm-ascend loads (quant_model_description.json names every tensor).

    W8A8          weight i8 [O, I]; input_scale, input_offset f32 [1]; deq_scale [O] (f32 for a
                  bfloat16 model, else i64 that holds the bits of the f32); quant_bias i32 [O]
    W8A8Dynamic   weight i8 [O, I]; weight_scale, weight_offset f32 [O, 1]
    W8A16         the same as W8A8Dynamic
    all           bias f32 [O] where the linear has one, described as FLOAT

A static linear computes (x_q W_q^T + quant_bias) * deq_scale with deq_scale = input_scale *
weight_scale and quant_bias = round(bias / deq_scale) - input_offset * sum_i W_q: the bias is
rounded to the step of the accumulator, and the scale of the weight cannot be read back from the
files (it is in the sidecar). The product with the offset is an integer and added as one.

What the server asks: q/k/v and gate/up share one type and one input scale and offset; offsets of
weights are zero; only one scale a row; the description names every parameter, also the head of a
model whose head is the embedding. A float32 checkpoint is described as a float16 one.

O = out features, I = in features.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import (
    DType,
    FilePlan,
    LinearPlan,
    LinearScheme,
    Plan,
    SchemeName,
    TensorMeta,
)
from quantfleet_worker.formats.derived import DerivedTensor
from quantfleet_worker.formats.metadata import config_json, linears_of, with_index
from quantfleet_worker.formats.safetensors_file import index_json, numbered_names
from quantfleet_worker.schemes import QuantizedLinear

__all__ = [
    "decode", "encode", "extra_tensors", "file_names", "folder", "index_json", "index_name",
    "metadata_files", "mixture_refusal", "refusal", "sidecar", "tensors",
]  # fmt: skip

folder = "ascend"
index_name = "quant_model_weights.safetensors.index.json"

_TYPES: dict[SchemeName, str] = {
    "W8A16": "W8A16",
    "W8A8Dynamic": "W8A8_DYNAMIC",
    "W8A8": "W8A8",
}
"""The type by which a server finds its code; in rising order for `model_quant_type`."""

_LARGEST_BIAS = 2.0**30
"""In steps of the accumulator; leaves room for the product with the offset in an int32."""


def refusal(scheme: LinearScheme, *, model_dtype: DType) -> str | None:
    """Why no server loads a linear of this scheme, or None where one does, for any model dtype."""
    if scheme.name not in _TYPES:
        return f"servers load {scheme.name} for experts only, not for dense linears"
    if not scheme.weights.symmetric:
        return (
            "servers read the offset of a weight with either sign, so only symmetric weights agree"
        )
    if scheme.weights.group_size:
        return "servers keep one scale a row of a dense linear, not one a group"
    if scheme.activations is not None:
        if scheme.activations.kind == "dynamic" and not scheme.activations.symmetric:
            return "servers quantize activations a token symmetrically only"
    return None


def mixture_refusal(schemes: Collection[LinearScheme]) -> str | None:
    """None: the description names the type of every tensor."""
    return None


def tensors(linear: LinearPlan, model_dtype: DType) -> tuple[TensorMeta, ...]:
    """What is written for a quantized linear."""
    O, I = linear.out_features, linear.in_features  # noqa: E741
    metas: list[tuple[str, DType, tuple[int, ...]]] = [("weight", "I8", (O, I))]
    if _is_static(linear):
        metas += [("input_scale", "F32", (1,)), ("input_offset", "F32", (1,))]
        metas += [("deq_scale", "F32" if model_dtype == "BF16" else "I64", (O,))]
        metas += [("quant_bias", "I32", (O,))]
    else:
        metas += [("weight_scale", "F32", (O, 1)), ("weight_offset", "F32", (O, 1))]
    if linear.bias:
        metas.append(("bias", "F32", (O,)))
    return tuple(TensorMeta(name=f"{linear.name}.{n}", dtype=d, shape=s) for n, d, s in metas)


def encode(linear: LinearPlan, quantized: QuantizedLinear, model_dtype: DType) -> dict[str, Tensor]:
    """The tensors that `tensors` lists, by full name."""
    found = {"weight": quantized.codes}
    if _is_static(linear):
        found |= _static_tensors(linear, quantized, model_dtype)
    else:
        found["weight_scale"] = quantized.scale
        found["weight_offset"] = torch.zeros_like(quantized.scale)
    if quantized.bias is not None:
        found["bias"] = quantized.bias
    return {f"{linear.name}.{name}": tensor for name, tensor in found.items()}


def sidecar(linear: LinearPlan, quantized: QuantizedLinear) -> dict[str, Tensor]:
    """What `encode` loses: the weight's scale of a static linear."""
    return {f"{linear.name}.weight_scale": quantized.scale} if _is_static(linear) else {}


def decode(
    linear: LinearPlan,
    tensors: Mapping[str, Tensor],
    sidecar: Mapping[str, Tensor],
    model_dtype: DType,
) -> QuantizedLinear:
    """The linear that a server computes from the written tensors."""
    codes = tensors[f"{linear.name}.weight"]
    if not _is_static(linear):
        scale = tensors[f"{linear.name}.weight_scale"]
        return QuantizedLinear(codes=codes, scale=scale, bias=tensors.get(f"{linear.name}.bias"))
    assert linear.scheme is not None
    assert linear.scheme.activations is not None
    offset = tensors[f"{linear.name}.input_offset"].to(torch.int8)
    bias = None
    if linear.bias:
        deq_scale = _as_float32(tensors[f"{linear.name}.deq_scale"])
        steps = tensors[f"{linear.name}.quant_bias"] + _offset_product(codes, offset)
        bias = steps.float() * deq_scale
    return QuantizedLinear(
        codes=codes,
        scale=sidecar[f"{linear.name}.weight_scale"],
        bias=bias,
        input_scale=tensors[f"{linear.name}.input_scale"],
        input_zero_point=None if linear.scheme.activations.symmetric else offset,
    )


def extra_tensors(
    embedding: TensorMeta, *, head: str, tied: bool, head_quantized: bool
) -> tuple[DerivedTensor, ...]:
    """The head of a model whose head is the embedding, under its own name."""
    if not tied or head_quantized:
        return ()
    meta = TensorMeta(name=f"{head}.weight", dtype=embedding.dtype, shape=embedding.shape)
    return (DerivedTensor(meta=meta, copy_of=embedding.name),)


def file_names(num_files: int) -> tuple[str, ...]:
    """Names of the tensor files, in order."""
    return numbered_names("quant_model_weights", num_files)


def metadata_files(plan: Plan, config: Mapping[str, Any]) -> dict[str, bytes]:
    """config.json without quantization_config, the description and, for several files, an index."""
    tensor_files = [file for layer in plan.layers for file in layer.files["Ascend"]]
    files = {
        "config.json": config_json(plan, config, None),
        "quant_model_description.json": _description(plan, tensor_files),
    }
    return with_index(files, index_name, tensor_files)


def _description(plan: Plan, files: list[FilePlan]) -> bytes:
    types: dict[str, str] = {}
    used = {"FLOAT"}
    for linear in linears_of(plan):
        if linear.scheme is not None:
            used.add(_TYPES[linear.scheme.name])
            for meta in tensors(linear, plan.model_dtype):
                types[meta.name] = _TYPES[linear.scheme.name]
            types.pop(f"{linear.name}.bias", None)
    description: dict[str, Any] = {
        tensor.name: types.get(tensor.name, "FLOAT") for file in files for tensor in file.tensors
    }
    description |= {
        "version": "1.0.0",
        "model_quant_type": max(used, key=["FLOAT", *_TYPES.values()].index),
        "metadata": {},
        "group_size": 0,
        "optional": {},
    }
    return (json.dumps(description, indent=2, sort_keys=True) + "\n").encode()


def _static_tensors(
    linear: LinearPlan, quantized: QuantizedLinear, model_dtype: DType
) -> dict[str, Tensor]:
    assert quantized.input_scale is not None
    offset = quantized.input_zero_point
    if offset is None:
        offset = torch.zeros(1, dtype=torch.int8, device=quantized.codes.device)
    deq_scale = quantized.input_scale * quantized.scale.reshape(-1)
    steps = torch.zeros_like(deq_scale)
    if quantized.bias is not None:
        deq_scale = _deq_scale_for_bias(linear, quantized.codes, quantized.bias, deq_scale)
        steps = torch.round(quantized.bias / deq_scale)
    quant_bias = steps.to(torch.int32) - _offset_product(quantized.codes, offset)
    as_written = deq_scale if model_dtype == "BF16" else deq_scale.view(torch.int32).to(torch.int64)
    return {
        "input_scale": quantized.input_scale,
        "input_offset": offset.float(),
        "deq_scale": as_written,
        "quant_bias": quant_bias,
    }


def _deq_scale_for_bias(
    linear: LinearPlan, codes: Tensor, bias: Tensor, deq_scale: Tensor
) -> Tensor:
    """deq_scale [O], larger for dead rows whose bias has too many steps for an int32.

    A row of zero codes computes its bias alone, so its deq_scale may be any step that holds it.
    """
    too_large = bias.abs() > _LARGEST_BIAS * deq_scale
    dead = ~codes.any(dim=1)
    if bool((too_large & ~dead).any()):
        row = int((too_large & ~dead).nonzero()[0])
        rule = "must be at most 2^30 steps of input_scale x weight_scale in the Ascend format"
        raise InvalidInput(f"{linear.name}.bias[{row}]", float(bias[row]), rule)
    return torch.where(too_large, bias.abs() / _LARGEST_BIAS, deq_scale)


def _offset_product(codes: Tensor, offset: Tensor) -> Tensor:
    """int32 [O]: the input's offset times the sum of a row; exact up to 65,000 columns."""
    assert codes.shape[1] <= 65_000, "the product fits an int32 beside the bias"
    return codes.sum(dim=1, dtype=torch.int32) * offset.to(torch.int32)


def _as_float32(deq_scale: Tensor) -> Tensor:
    if deq_scale.dtype == torch.float32:
        return deq_scale
    return deq_scale.to(torch.int32).view(torch.float32)


def _is_static(linear: LinearPlan) -> bool:
    assert linear.scheme is not None, f"{linear.name} is left in float"
    return linear.scheme.name == "W8A8"

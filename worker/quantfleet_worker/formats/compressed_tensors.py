"""The compressed-tensors format: what stock transformers and vLLM load.

    W8A8, W8A8Dynamic   int-quantized    weight i8 [O, I]; static also input_scale f32 [1] and,
                                         asymmetric, input_zero_point i8 [1]
    W8A16, W4A16        pack-quantized   weight_packed i32 [O, ceil(I * b / 32)], weight_shape
                                         i64 [2]; asymmetric also weight_zero_point
                                         i32 [ceil(O * b / 32), G]
    all                                  weight_scale [O, G], bias in the model's dtype

Eight-bit weights without quantized activations are packed too: that is the only layout in which
vLLM serves them (its WNA16 scheme). Scales are float32 for 8 bits; for 4 bits they have the model's
dtype, because vLLM's kernels do, and were rounded to it before the weight was coded.

What vLLM asks beyond transformers: int8 activations need symmetric per-channel weights (with
grouped ones it silently serves the linear as weight-only); the linears that it fuses (q/k/v,
gate/up) have one scheme and, for static activations, equal input scales.

Asymmetric weights are the only scheme of their model: see quantization_config.

O = out features, I = in features, G = groups of a row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quantfleet_api.plan import DType, FilePlan, LinearPlan, LinearScheme, Plan, TensorMeta
from quantfleet_worker.formats.derived import DerivedTensor
from quantfleet_worker.formats.metadata import config_json, with_index
from quantfleet_worker.formats.packing import (
    num_words,
    pack_columns,
    pack_rows,
    unpack_columns,
    unpack_rows,
)
from quantfleet_worker.formats.quantization_config import mixture_refusal, quantization_config
from quantfleet_worker.formats.safetensors_file import index_json, numbered_names
from quantfleet_worker.schemes import TORCH_DTYPES, QuantizedLinear

__all__ = [
    "decode", "encode", "extra_tensors", "file_names", "folder", "index_json", "index_name",
    "metadata_files", "mixture_refusal", "refusal", "sidecar", "tensors",
]  # fmt: skip

folder = "compressed-tensors"
index_name = "model.safetensors.index.json"


def refusal(scheme: LinearScheme, *, model_dtype: DType) -> str | None:
    """Why no loader takes a linear of this scheme, or None where one does, for any model dtype."""
    if scheme.activations is None:
        return None
    if not scheme.weights.symmetric:
        return "servers multiply int8 activations by symmetric weights only"
    if scheme.weights.group_size:
        return "servers multiply int8 activations by weights with one scale a row only"
    return None


def tensors(linear: LinearPlan, model_dtype: DType) -> tuple[TensorMeta, ...]:
    """What is written for a quantized linear."""
    scheme = _scheme(linear)
    O, I, b = linear.out_features, linear.in_features, scheme.weights.bits  # noqa: E741
    G = I // scheme.weights.group_size if scheme.weights.group_size else 1
    metas: list[tuple[str, DType, tuple[int, ...]]]
    if scheme.activations is not None:
        metas = [("weight", "I8", (O, I))]
    else:
        metas = [("weight_packed", "I32", (O, num_words(I, b))), ("weight_shape", "I64", (2,))]
    metas.append(("weight_scale", "F32" if b == 8 else model_dtype, (O, G)))
    if not scheme.weights.symmetric:
        metas.append(("weight_zero_point", "I32", (num_words(O, b), G)))
    if scheme.activations is not None and scheme.activations.kind == "static":
        metas.append(("input_scale", "F32", (1,)))
        if not scheme.activations.symmetric:
            metas.append(("input_zero_point", "I8", (1,)))
    if linear.bias:
        metas.append(("bias", model_dtype, (O,)))
    return tuple(TensorMeta(name=f"{linear.name}.{n}", dtype=d, shape=s) for n, d, s in metas)


def encode(linear: LinearPlan, quantized: QuantizedLinear, model_dtype: DType) -> dict[str, Tensor]:
    """The tensors that `tensors` lists, by full name."""
    scheme = _scheme(linear)
    b = scheme.weights.bits
    scale = quantized.scale.to(TORCH_DTYPES["F32" if b == 8 else model_dtype])
    assert torch.equal(scale.float(), quantized.scale), (
        f"{linear.name}: 4-bit scales are rounded to {model_dtype} before coding"
    )
    found: dict[str, Tensor | None] = {
        "input_scale": quantized.input_scale,
        "input_zero_point": quantized.input_zero_point,
        "weight_scale": scale,
    }
    if scheme.activations is not None:
        found["weight"] = quantized.codes
    else:
        found["weight_packed"] = pack_rows(quantized.codes, b)
        found["weight_shape"] = torch.tensor(quantized.codes.shape)
    if quantized.zero_point is not None:
        found["weight_zero_point"] = pack_columns(quantized.zero_point, b)
    if quantized.bias is not None:
        found["bias"] = quantized.bias.to(TORCH_DTYPES[model_dtype])
    return {f"{linear.name}.{name}": tensor for name, tensor in found.items() if tensor is not None}


def sidecar(linear: LinearPlan, quantized: QuantizedLinear) -> dict[str, Tensor]:
    """What `encode` loses: nothing."""
    return {}


def decode(
    linear: LinearPlan,
    tensors: Mapping[str, Tensor],
    sidecar: Mapping[str, Tensor],
    model_dtype: DType,
) -> QuantizedLinear:
    """The linear that a server computes from the written tensors."""
    scheme = _scheme(linear)
    b = scheme.weights.bits

    def found(name: str) -> Tensor | None:
        return tensors.get(f"{linear.name}.{name}")

    def needed(name: str) -> Tensor:
        return tensors[f"{linear.name}.{name}"]

    if scheme.activations is not None:
        codes = needed("weight")
    else:
        codes = unpack_rows(needed("weight_packed"), b, linear.in_features)
    zero_point, bias = found("weight_zero_point"), found("bias")
    if zero_point is not None:
        zero_point = unpack_columns(zero_point, b, linear.out_features)
    return QuantizedLinear(
        codes=codes,
        scale=needed("weight_scale").float(),
        zero_point=zero_point,
        bias=None if bias is None else bias.float(),
        input_scale=found("input_scale"),
        input_zero_point=found("input_zero_point"),
    )


def extra_tensors(
    embedding: TensorMeta, *, head: str, tied: bool, head_quantized: bool
) -> tuple[DerivedTensor, ...]:
    """None: loaders tie the head to the embedding themselves."""
    return ()


def file_names(num_files: int) -> tuple[str, ...]:
    """Names of the tensor files, in order."""
    return numbered_names("model", num_files)


def metadata_files(plan: Plan, config: Mapping[str, Any]) -> dict[str, bytes]:
    """config.json with its quantization_config and, for several files, their index."""
    files = {"config.json": config_json(plan, config, quantization_config(plan))}
    return with_index(files, index_name, _files(plan))


def _files(plan: Plan) -> Sequence[FilePlan]:
    return [file for layer in plan.layers for file in layer.files["CompressedTensors"]]


def _scheme(linear: LinearPlan) -> LinearScheme:
    assert linear.scheme is not None, f"{linear.name} is left in float"
    return linear.scheme

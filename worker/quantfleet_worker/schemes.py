"""What a quantized linear is, before any file format, and the weight that a server computes.

Methods return a `QuantizedLinear`; formats encode and decode it; the layer that runs is made from
the decoded one by `dequantized_weight`.

Shapes: O = out features, I = in features, G = groups of a row (1 for per-channel scales).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from quantfleet_api.plan import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch's dtype of each dtype name that safetensors headers use here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLinear:
    """Codes and parameters of one linear; x ~ (q - zero_point) * scale.

    codes: int8 [O, I], within [-2^(b-1), 2^(b-1) - 1] also for 4 bits (one code a byte).
    scale: float32 [O, G]. zero_point: int8 [O, G], None when symmetric.
    bias: float32 [O] or None; as smoothed, not quantized.
    input_scale float32 [1] and input_zero_point int8 [1]: static activations only; the zero point
    is None when they are symmetric.
    """

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    bias: Tensor | None = None
    input_scale: Tensor | None = None
    input_zero_point: Tensor | None = None


def dequantized_weight(linear: QuantizedLinear) -> Tensor:
    """The weight [O, I] in float32 that the codes stand for."""
    O, I = linear.codes.shape  # noqa: E741 - the papers' symbols
    G = linear.scale.shape[1]
    grouped = linear.codes.to(torch.float32).reshape(O, G, I // G)
    if linear.zero_point is not None:
        grouped = grouped - linear.zero_point.to(torch.float32).reshape(O, G, 1)
    return (grouped * linear.scale.reshape(O, G, 1)).reshape(O, I)

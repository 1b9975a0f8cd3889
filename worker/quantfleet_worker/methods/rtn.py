"""Round to nearest: scales from the weights' own ranges, codes without regard to data."""

import torch
from torch import Tensor

from quantfleet_api.plan import WeightScheme
from quantfleet_worker.numerics import quantize, scale_zero_point, zero_point


def quantize_weight(
    W_OI: Tensor,
    scheme: WeightScheme,
    *,
    scale_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes int8 [O, I], scale float32 [O, G], zero point int8 [O, G] (None if symmetric)."""
    O, I = W_OI.shape  # noqa: E741
    group_size = scheme.group_size or I
    grouped = W_OI.to(torch.float32).reshape(O, I // group_size, group_size)
    scale, zero = weight_parameters(grouped, scheme, scale_dtype=scale_dtype)
    codes = quantize(
        grouped,
        scale.unsqueeze(-1),
        None if zero is None else zero.unsqueeze(-1),
        bits=scheme.bits,
    )
    return codes.reshape(O, I), scale, zero


def weight_parameters(
    grouped: Tensor, scheme: WeightScheme, *, scale_dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Scale and zero point of the values along the last dimension.

    The scale is first rounded to the dtype in which files keep it: codes and zero point belong to
    the scale that a server reads, not to one it never sees.
    """
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale, _ = scale_zero_point(low, high, bits=scheme.bits, symmetric=scheme.symmetric)
    # A scale outside the dtype's normal range would be stored as 0 or infinity.
    limits = torch.finfo(scale_dtype)
    scale = scale.clamp(limits.tiny, limits.max).to(scale_dtype).to(torch.float32)
    zero = None if scheme.symmetric else zero_point(low, scale, bits=scheme.bits)
    return scale, zero

"""The integer arithmetic that all schemes share: ranges, scales, codes, fake quantization.

Called by methods, observers, formats' tests and the layer that runs. The formulas are those of
compressed-tensors (quantization/utils/helpers.py), so that what is served is what was measured:

    minimum := min(minimum, 0), maximum := max(maximum, 0)
    symmetric:  scale = max(|minimum|, |maximum|) / ((qmax - qmin) / 2)    (int8: / 127.5)
    asymmetric: scale = (maximum - minimum) / (qmax - qmin)
                zero_point = clamp(round(qmin - minimum / scale), qmin, qmax)
    q = round(clamp(x / scale + zero_point, qmin, qmax)), halves to even
    x ~ (q - zero_point) * scale

All of it is float32, whatever the dtype of x: x / scale in bfloat16 would decide codes by its
rounding error.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_EPSILON = torch.finfo(torch.float32).eps
_BLOCK_ELEMENTS = 1 << 19  # 2 MiB of float32: passes over a block stay in a core's cache


def int_range(bits: int) -> tuple[int, int]:
    """The smallest and the largest code of signed integers of that many bits."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def scale_zero_point(
    minimum: Tensor, maximum: Tensor, *, bits: int, symmetric: bool
) -> tuple[Tensor, Tensor | None]:
    """Scale (float32) and zero point (int8; None if symmetric) of ranges, element by element.

    A range that holds nothing but 0 has no scale of its own; it gets float32's epsilon.
    """
    low = minimum.to(torch.float32).clamp(max=0.0)
    high = maximum.to(torch.float32).clamp(min=0.0)
    qmin, qmax = int_range(bits)
    if symmetric:
        return _nonzero(torch.maximum(-low, high) / ((qmax - qmin) / 2)), None
    scale = _nonzero(_span(low, high) / (qmax - qmin))
    return scale, zero_point(low, scale, bits=bits)


def zero_point(minimum: Tensor, scale: Tensor, *, bits: int) -> Tensor:
    """The int8 code that stands for 0 exactly, given the low end of the range and the scale."""
    qmin, qmax = int_range(bits)
    low = minimum.to(torch.float32).clamp(max=0.0)
    return torch.round(qmin - low / scale).clamp(qmin, qmax).to(torch.int8)


def quantize(x: Tensor, scale: Tensor, zero_point: Tensor | None, *, bits: int) -> Tensor:
    """int8 codes of x; scale and zero_point broadcast against it."""
    return _codes(x.to(torch.float32), scale, _as_float(zero_point), bits).to(torch.int8)


def fake_quantize_static(x: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """x after int8 quantization with one scale [1] and zero point [1]; same shape and dtype."""
    zero = _as_float(zero_point)

    def block(rows: Tensor) -> Tensor:
        codes = _codes(rows.to(torch.float32), scale, zero, 8)
        return (codes if zero is None else codes.sub_(zero)).mul_(scale)

    return _by_row_blocks(block, x)


def fake_quantize_per_token(x: Tensor) -> Tensor:
    """x after symmetric int8 quantization with a scale a token (all dimensions but the last).

    The scale is absmax / 127.5, as compressed-tensors computes it at run time.
    """

    def block(rows: Tensor) -> Tensor:
        wide = rows.to(torch.float32)
        absmax = torch.maximum(-wide.amin(1, keepdim=True), wide.amax(1, keepdim=True))
        scale = _nonzero(absmax / 127.5)
        return _codes(wide, scale, None, 8).mul_(scale)

    return _by_row_blocks(block, x)


def _by_row_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function, which treats every row [1, I] alone, over x in blocks that fit a core's cache."""
    rows = x.reshape(-1, x.shape[-1])
    step = max(1, _BLOCK_ELEMENTS // max(1, rows.shape[1]))
    if rows.shape[0] <= step:
        return function(rows).to(x.dtype).reshape(x.shape)
    out = torch.empty_like(rows)
    for start in range(0, rows.shape[0], step):
        out[start : start + step] = function(rows[start : start + step])
    return out.reshape(x.shape)


def _codes(x: Tensor, scale: Tensor, zero: Tensor | None, bits: int) -> Tensor:
    """Codes as float32 in a tensor of their own."""
    qmin, qmax = int_range(bits)
    scaled = x / scale
    if zero is not None:
        scaled.add_(zero)
    return scaled.clamp_(qmin, qmax).round_()


def _as_float(zero_point: Tensor | None) -> Tensor | None:
    return None if zero_point is None else zero_point.to(torch.float32)


def _nonzero(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.full_like(scale, _EPSILON), scale)


def _span(low: Tensor, high: Tensor) -> Tensor:
    """high - low, kept finite where the ends are near float32's limits."""
    return (high - low).clamp(max=torch.finfo(torch.float32).max)

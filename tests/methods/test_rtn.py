"""Round to nearest: the formulas row by row and group by group."""

import pytest
import torch
from torch import Tensor

from quantfleet_api.plan import WeightScheme
from quantfleet_worker.methods import rtn
from quantfleet_worker.numerics import int_range
from quantfleet_worker.schemes import QuantizedLinear, dequantized_weight


def weights(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * 0.05


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("columns", "group_size"), [(96, 0), (96, 32), (1, 0), (35, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_weight_is_within_half_a_step_of_its_code(
    bits: int, symmetric: bool, columns: int, group_size: int, dtype: torch.dtype
) -> None:
    W_OI = weights(13, columns).to(dtype)
    scheme = WeightScheme.model_validate(
        {"bits": bits, "symmetric": symmetric, "group_size": group_size}
    )
    codes, scale, zero = rtn.quantize_weight(W_OI, scheme, scale_dtype=torch.float32)

    groups = columns // (group_size or columns)
    assert codes.dtype == torch.int8
    assert codes.shape == W_OI.shape
    assert scale.dtype == torch.float32
    assert scale.shape == (13, groups)
    assert (zero is None) == symmetric
    qmin, qmax = int_range(bits)
    assert qmin <= int(codes.min()) <= int(codes.max()) <= qmax
    Q_OI = dequantized_weight(QuantizedLinear(codes=codes, scale=scale, zero_point=zero))
    step = scale.repeat_interleave(columns // groups, 1)
    # The largest code of a symmetric scale lies half a step short of the largest value.
    assert bool(((W_OI.to(torch.float32) - Q_OI).abs() <= step * 0.50001).all())


def test_int8_scales_are_absmax_over_127_and_a_half() -> None:
    W_OI = weights(7, 48)
    scheme = WeightScheme(bits=8, symmetric=True, group_size=0)
    _, scale, _ = rtn.quantize_weight(W_OI, scheme, scale_dtype=torch.float32)
    assert torch.equal(scale, W_OI.abs().amax(1, keepdim=True) / 127.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_belong_to_the_scale_that_is_stored(dtype: torch.dtype, symmetric: bool) -> None:
    W_OI = weights(400, 64)
    scheme = WeightScheme(bits=4, symmetric=symmetric, group_size=32)
    codes, scale, zero = rtn.quantize_weight(W_OI, scheme, scale_dtype=dtype)
    assert torch.equal(scale, scale.to(dtype).to(torch.float32))
    grouped = W_OI.reshape(400, 2, 32) / scale.unsqueeze(-1)
    if zero is not None:
        low = W_OI.reshape(400, 2, 32).amin(-1).clamp(max=0)
        assert torch.equal(zero, (-8 - low / scale).round().clamp(-8, 7).to(torch.int8))
        grouped = grouped + zero.to(torch.float32).unsqueeze(-1)
    assert torch.equal(codes, grouped.clamp(-8, 7).round().reshape(400, 64).to(torch.int8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_scales_stay_usable_at_the_ends_of_their_dtype(dtype: torch.dtype, size: float) -> None:
    W_OI = torch.full((2, 4), size)
    for symmetric in (True, False):
        scheme = WeightScheme(bits=4, symmetric=symmetric, group_size=0)
        codes, scale, _ = rtn.quantize_weight(W_OI, scheme, scale_dtype=dtype)
        assert bool(((scale > 0) & torch.isfinite(scale)).all())
        assert torch.equal(scale, scale.to(dtype).to(torch.float32))
        assert codes.shape == (2, 4)


def test_a_block_of_rows_gives_the_same_codes_as_all_rows() -> None:
    W_OI = weights(30, 64)
    scheme = WeightScheme(bits=4, symmetric=False, group_size=32)
    codes, scale, zero = rtn.quantize_weight(W_OI, scheme, scale_dtype=torch.bfloat16)
    some = rtn.quantize_weight(W_OI[11:19], scheme, scale_dtype=torch.bfloat16)
    assert zero is not None
    assert some[2] is not None
    assert torch.equal(some[0], codes[11:19])
    assert torch.equal(some[1], scale[11:19])
    assert torch.equal(some[2], zero[11:19])

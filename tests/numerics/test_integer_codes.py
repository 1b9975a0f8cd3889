"""Scales, zero points, codes and fake quantization against their definitions and the library's."""

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_worker import numerics

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)


def test_int_range_is_that_of_signed_integers() -> None:
    assert numerics.int_range(8) == (-128, 127)
    assert numerics.int_range(4) == (-8, 7)


@given(ends=st.tuples(FINITE, FINITE), bits=st.sampled_from([4, 8]), symmetric=st.booleans())
def test_parameters_equal_the_library(
    ends: tuple[float, float], bits: int, symmetric: bool
) -> None:
    low, high = torch.tensor([min(ends)]), torch.tensor([max(ends)])
    arguments = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy="tensor")
    expected_scale, expected_zero = calculate_qparams(low, high, arguments)

    scale, zero = numerics.scale_zero_point(low, high, bits=bits, symmetric=symmetric)

    assert scale.dtype == torch.float32
    assert torch.equal(scale, expected_scale)
    if symmetric:
        assert zero is None
    elif float(low) < 0 or float(high) > 0:  # the library divides 0 by 0 otherwise
        assert zero is not None
        assert zero.dtype == torch.int8
        assert torch.equal(zero, expected_zero.to(torch.int8))


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_range_of_nothing_but_zero_keeps_zero(symmetric: bool) -> None:
    nothing = torch.zeros(3)
    scale, zero = numerics.scale_zero_point(nothing, nothing, bits=8, symmetric=symmetric)
    assert torch.equal(scale, torch.full((3,), torch.finfo(torch.float32).eps))
    assert torch.equal(
        numerics.fake_quantize_static(nothing, scale[:1], None if zero is None else zero[:1]),
        nothing,
    )


def test_a_range_as_wide_as_float32_has_a_finite_scale() -> None:
    end = torch.tensor([torch.finfo(torch.float32).max])
    scale, zero = numerics.scale_zero_point(-end, end, bits=8, symmetric=False)
    assert bool(torch.isfinite(scale).all())
    assert zero is not None
    assert -128 <= int(zero) <= 127


@given(
    values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=50),
    scale=st.floats(2.0**-10, 2.0**10, width=32),
    zero=st.one_of(st.none(), st.integers(-128, 127)),
    bits=st.sampled_from([4, 8]),
)
def test_codes_follow_the_formula(
    values: list[float], scale: float, zero: int | None, bits: int
) -> None:
    x = np.array(values, dtype=np.float32)
    shifted = (x / np.float32(scale)) + np.float32(zero or 0)
    expected = np.rint(np.clip(shifted, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1))

    point = None if zero is None else torch.tensor([zero], dtype=torch.int8)
    codes = numerics.quantize(torch.from_numpy(x), torch.tensor([scale]), point, bits=bits)

    assert codes.dtype == torch.int8
    assert codes.tolist() == expected.astype(int).tolist()


def test_halves_go_to_the_even_code() -> None:
    codes = numerics.quantize(
        torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]), torch.ones(1), None, bits=8
    )
    assert codes.tolist() == [-2, -2, 0, 0, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("zero", [None, -128, 3])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 5), (700, 999)], ids=str)
def test_static_fake_quantization_is_codes_times_scale(
    dtype: torch.dtype, zero: int | None, shape: tuple[int, ...]
) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)
    before = x.clone()
    scale = torch.tensor([0.07])
    point = None if zero is None else torch.tensor([zero], dtype=torch.int8)
    codes = numerics.quantize(x, scale, point, bits=8).to(torch.float32)

    result = numerics.fake_quantize_static(x, scale, point)

    assert result.dtype == dtype
    assert torch.equal(result, ((codes - (zero or 0)) * scale).to(dtype))
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_token_is_quantized_by_its_own_largest_value(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 350, 999, generator=generator) * torch.rand(3, 350, 1, generator=generator)
    x = x.to(dtype)
    x[1, 7] = 0

    result = numerics.fake_quantize_per_token(x)

    assert result.dtype == dtype
    scale = x.to(torch.float32).abs().amax(-1, keepdim=True) / 127.5
    scale[scale == 0] = 1.0
    codes = numerics.quantize(x, scale, None, bits=8)
    assert torch.equal(result, (codes.to(torch.float32) * scale).to(dtype))
    assert torch.equal(result[2, 5:6], numerics.fake_quantize_per_token(x[2, 5:6]))


def test_fake_quantization_equals_the_library() -> None:
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(2))
    scale, zero = numerics.scale_zero_point(x.amin(), x.amax(), bits=8, symmetric=False)
    assert zero is not None
    arguments = QuantizationArgs(num_bits=8, symmetric=False, strategy="tensor")
    expected = fake_quantize(x, scale, zero, arguments)
    assert torch.equal(numerics.fake_quantize_static(x, scale, zero), expected)

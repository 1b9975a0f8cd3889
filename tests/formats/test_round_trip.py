"""The law of formats: what is decoded from the written tensors is what was encoded."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import DType, FormatName, LinearPlan, LinearScheme, SchemeName, TensorMeta
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.schemes import TORCH_DTYPES, QuantizedLinear
from rtn_folder import DTYPE_NAMES, round_linear, scheme

WEIGHT_ONLY_NAMES: tuple[SchemeName, ...] = ("W8A16", "W4A16")
WEIGHT_ONLY = [
    scheme(name, symmetric=symmetric, group_size=group)
    for name, symmetric, group in product(WEIGHT_ONLY_NAMES, (True, False), (0, 8, 32))
]
ACTIVATIONS = [
    scheme("W8A8", input_symmetric=True),
    scheme("W8A8", input_symmetric=False),
    scheme("W8A8Dynamic"),
]
CASES: list[tuple[FormatName, LinearScheme]] = [
    ("CompressedTensors", found) for found in WEIGHT_ONLY + ACTIVATIONS
] + [("Ascend", found) for found in [*ACTIVATIONS, scheme("W8A16")]]


def shown(value: object) -> str | None:
    if isinstance(value, LinearScheme):
        weights = value.weights
        sign = "" if weights.symmetric else "-asymmetric"
        static = value.activations and value.activations.symmetric
        return f"{value.name}{sign}-g{weights.group_size}-{static}"
    return None


def linear_of(found: LinearScheme, *, bias: bool, shape: tuple[int, int] = (24, 96)) -> LinearPlan:
    return LinearPlan(
        name="model.layers.3.mlp.down_proj",
        local="mlp.down_proj",
        out_features=shape[0],
        in_features=shape[1],
        bias=bias,
        scheme=found,
    )


def quantized(linear: LinearPlan, dtype: DType, seed: int = 0) -> QuantizedLinear:
    generator = torch.Generator().manual_seed(seed)
    shape = (linear.out_features, linear.in_features)
    weight = torch.randn(shape, generator=generator) * 10 ** torch.randn(
        (shape[0], 1), generator=generator
    )
    bias = torch.randn(shape[0], generator=generator) if linear.bias else None
    return round_linear(linear, weight, bias, (-0.7, 2.9), TORCH_DTYPES[dtype])


def assert_same(found: QuantizedLinear, expected: QuantizedLinear) -> None:
    for field in ("codes", "scale", "zero_point", "input_scale", "input_zero_point"):
        a, b = getattr(found, field), getattr(expected, field)
        assert (a is None) == (b is None), field
        if a is not None:
            assert a.dtype == b.dtype, field
            assert a.shape == b.shape, field
            assert torch.equal(a, b), field


def round_trip(
    name: FormatName, linear: LinearPlan, original: QuantizedLinear, dtype: DType
) -> QuantizedLinear:
    found = FORMATS[name]
    return found.decode(
        linear,
        found.encode(linear, original, dtype),
        found.sidecar(linear, original),
        dtype,
    )


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("name", "found"), CASES, ids=shown)
def test_decoded_is_what_was_encoded(
    name: FormatName, found: LinearScheme, dtype: DType, bias: bool
) -> None:
    linear = linear_of(found, bias=bias)
    original = quantized(linear, dtype)

    decoded = round_trip(name, linear, original, dtype)

    assert_same(decoded, original)
    assert (decoded.bias is not None) == bias


@given(
    st.sampled_from([case for case in CASES if not case[1].weights.group_size]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 2**31),
)
def test_odd_shapes_survive(
    case: tuple[FormatName, LinearScheme], rows: int, columns: int, seed: int
) -> None:
    linear = linear_of(case[1], bias=True, shape=(rows, columns))
    original = quantized(linear, "BF16", seed)

    assert_same(round_trip(case[0], linear, original, "BF16"), original)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("name", "found"), CASES, ids=shown)
def test_encoded_tensors_are_the_planned_ones(
    name: FormatName, found: LinearScheme, dtype: DType, bias: bool
) -> None:
    linear = linear_of(found, bias=bias, shape=(20, 96))

    encoded = FORMATS[name].encode(linear, quantized(linear, dtype), dtype)

    metas = {
        TensorMeta(name=key, dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape))
        for key, tensor in encoded.items()
    }
    assert metas == set(FORMATS[name].tensors(linear, dtype))


@pytest.mark.parametrize(("name", "found"), CASES, ids=shown)
def test_sidecar_and_encoded_names_do_not_clash(name: FormatName, found: LinearScheme) -> None:
    linear = linear_of(found, bias=True)
    original = quantized(linear, "F32")

    encoded = FORMATS[name].encode(linear, original, "F32")

    assert not encoded.keys() & FORMATS[name].sidecar(linear, original).keys()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_ascend_rounds_a_static_bias_to_accumulator_steps(symmetric: bool, dtype: DType) -> None:
    linear = linear_of(scheme("W8A8", input_symmetric=symmetric), bias=True)
    original = quantized(linear, dtype)
    assert original.bias is not None
    assert original.input_scale is not None

    decoded = round_trip("Ascend", linear, original, dtype)

    assert decoded.bias is not None
    step = original.input_scale * original.scale[:, 0]
    rounding = 0.5 * step + 2e-7 * original.bias.abs()  # half a step, and float32
    assert bool(((decoded.bias - original.bias).abs() <= rounding).all())
    assert not torch.equal(decoded.bias, original.bias)


def test_ascend_without_a_bias_holds_only_the_offset_product() -> None:
    linear = linear_of(scheme("W8A8", input_symmetric=False), bias=False)
    original = quantized(linear, "BF16")
    assert original.input_zero_point is not None

    encoded = FORMATS["Ascend"].encode(linear, original, "BF16")

    product = int(original.input_zero_point) * original.codes.sum(dim=1)
    assert torch.equal(encoded[f"{linear.name}.quant_bias"].long(), -product)


def test_ascend_keeps_the_large_bias_of_a_dead_row() -> None:
    linear = linear_of(scheme("W8A8", input_symmetric=False), bias=True, shape=(2, 8))
    original = QuantizedLinear(
        codes=torch.tensor([[0] * 8, [1] * 8], dtype=torch.int8),
        scale=torch.tensor([[1e-7], [0.01]]),
        bias=torch.tensor([-37.5, 2.0]),
        input_scale=torch.tensor([1e-5]),
        input_zero_point=torch.tensor([3], dtype=torch.int8),
    )

    decoded = round_trip("Ascend", linear, original, "F16")

    assert_same(decoded, original)
    assert decoded.bias is not None
    torch.testing.assert_close(decoded.bias, torch.tensor([-37.5, 2.0]))


def test_ascend_refuses_a_bias_that_its_integers_cannot_hold() -> None:
    linear = linear_of(scheme("W8A8"), bias=True, shape=(1, 8))
    original = QuantizedLinear(
        codes=torch.ones(1, 8, dtype=torch.int8),
        scale=torch.tensor([[1e-7]]),
        bias=torch.tensor([37.5]),
        input_scale=torch.tensor([1e-5]),
    )

    with pytest.raises(InvalidInput, match=r"down_proj\.bias\[0\]: must be at most 2\^30 steps"):
        FORMATS["Ascend"].encode(linear, original, "F16")


def test_four_bit_scales_must_fit_the_model_dtype_already() -> None:
    linear = linear_of(scheme("W4A16", group_size=32), bias=False)

    with pytest.raises(AssertionError, match="rounded to BF16 before coding"):
        FORMATS["CompressedTensors"].encode(linear, quantized(linear, "F32"), "BF16")

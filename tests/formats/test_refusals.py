"""Which format exists for which scheme, and what else a format tells planning."""

import pytest
import torch

from quantfleet_api.plan import (
    ActivationScheme,
    FormatName,
    LinearPlan,
    LinearScheme,
    SitePlan,
    TensorMeta,
)
from quantfleet_worker.formats import FORMATS, assert_shared_input
from quantfleet_worker.schemes import QuantizedLinear
from rtn_folder import scheme

BOTH = {"CompressedTensors", "Ascend"}
DYNAMIC_ASYMMETRIC = scheme("W8A8Dynamic").model_copy(
    update={"activations": ActivationScheme(kind="dynamic", symmetric=False)}
)
MATRIX: list[tuple[LinearScheme, set[str]]] = [
    (scheme("W8A8"), BOTH),
    (scheme("W8A8", input_symmetric=False), BOTH),
    (scheme("W8A8", symmetric=False), set()),
    (scheme("W8A8", group_size=32), set()),
    (scheme("W8A8Dynamic"), BOTH),
    (DYNAMIC_ASYMMETRIC, {"CompressedTensors"}),
    (scheme("W8A8Dynamic", symmetric=False), set()),
    (scheme("W8A8Dynamic", group_size=64), set()),
    (scheme("W8A16"), BOTH),
    (scheme("W8A16", symmetric=False), {"CompressedTensors"}),
    (scheme("W8A16", group_size=128), {"CompressedTensors"}),
    (scheme("W4A16"), {"CompressedTensors"}),
    (scheme("W4A16", group_size=32), {"CompressedTensors"}),
    (scheme("W4A16", symmetric=False, group_size=128), {"CompressedTensors"}),
]


@pytest.mark.parametrize("name", ["CompressedTensors", "Ascend"])
@pytest.mark.parametrize(("found", "formats"), MATRIX)
def test_formats_take_what_servers_load(
    found: LinearScheme, formats: set[str], name: FormatName
) -> None:
    refusal = FORMATS[name].refusal(found, model_dtype="BF16")

    assert (refusal is None) == (name in formats)


@pytest.mark.parametrize(
    ("name", "found", "reason"),
    [
        ("Ascend", scheme("W4A16"), "for experts only"),
        ("Ascend", scheme("W8A16", symmetric=False), "only symmetric weights"),
        ("Ascend", scheme("W8A16", group_size=32), "not one a group"),
        ("Ascend", DYNAMIC_ASYMMETRIC, "symmetrically only"),
        ("CompressedTensors", scheme("W8A8", symmetric=False), "symmetric weights only"),
        ("CompressedTensors", scheme("W8A8", group_size=32), "one scale a row only"),
    ],
)
def test_a_refusal_says_what_the_server_does(
    name: FormatName, found: LinearScheme, reason: str
) -> None:
    assert reason in (FORMATS[name].refusal(found, model_dtype="F16") or "")


def test_file_names_are_those_that_loaders_look_for() -> None:
    assert FORMATS["CompressedTensors"].file_names(1) == ("model.safetensors",)
    assert FORMATS["CompressedTensors"].file_names(2) == (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    )
    assert FORMATS["CompressedTensors"].index_name == "model.safetensors.index.json"
    assert FORMATS["Ascend"].file_names(1) == ("quant_model_weights.safetensors",)
    assert FORMATS["Ascend"].file_names(12)[11] == "quant_model_weights-00012-of-00012.safetensors"
    assert FORMATS["Ascend"].index_name == "quant_model_weights.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "tied", "head_quantized", "expected"),
    [
        ("Ascend", True, False, ["lm_head.weight"]),
        ("Ascend", True, True, []),
        ("Ascend", False, False, []),
        ("CompressedTensors", True, False, []),
    ],
)
def test_only_a_tied_head_of_the_ascend_format_is_derived(
    name: FormatName, tied: bool, head_quantized: bool, expected: list[str]
) -> None:
    embedding = TensorMeta(name="model.embed_tokens.weight", dtype="BF16", shape=(512, 64))

    extra = FORMATS[name].extra_tensors(
        embedding, head="lm_head", tied=tied, head_quantized=head_quantized
    )

    assert [derived.meta.name for derived in extra] == expected
    for derived in extra:
        assert (derived.meta.dtype, derived.meta.shape) == ("BF16", (512, 64))
        assert derived.copy_of == "model.embed_tokens.weight"


def static(scale: float, zero_point: int | None) -> QuantizedLinear:
    return QuantizedLinear(
        codes=torch.ones(1, 1, dtype=torch.int8),
        scale=torch.ones(1, 1),
        input_scale=torch.tensor([scale]),
        input_zero_point=None if zero_point is None else torch.tensor([zero_point]),
    )


def site(*names: str) -> SitePlan:
    linears = tuple(
        LinearPlan(
            name=name, local=name, out_features=1, in_features=1, bias=False, scheme=scheme("W8A8")
        )
        for name in names
    )
    return SitePlan(name="site", features=1, linears=linears, statistics=())


def test_equal_input_parameters_pass() -> None:
    weight_only = QuantizedLinear(codes=torch.ones(1, 1), scale=torch.ones(1, 1))
    found = {"q": static(0.1, 3), "k": static(0.1, 3), "other": weight_only}

    assert_shared_input(site("q", "k", "other", "left_in_float"), found)


@pytest.mark.parametrize("other", [(0.2, 3), (0.1, 4), (0.1, None)])
def test_linears_of_a_site_with_unlike_input_parameters_are_caught(
    other: tuple[float, int | None],
) -> None:
    with pytest.raises(AssertionError, match="site: input"):
        assert_shared_input(site("q", "k"), {"q": static(0.1, 3), "k": static(*other)})


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        ([scheme("W4A16", symmetric=False)], False),
        ([scheme("W4A16"), scheme("W8A8"), scheme("W8A16", group_size=32)], False),
        ([scheme("W4A16", symmetric=False), scheme("W8A8")], True),
        ([scheme("W4A16", symmetric=False), scheme("W4A16")], True),
        ([scheme("W8A16", symmetric=False), scheme("W4A16", symmetric=False)], True),
    ],
)
def test_packed_zero_points_need_one_scheme(found: list[LinearScheme], refused: bool) -> None:
    assert (FORMATS["CompressedTensors"].mixture_refusal(found) is not None) == refused
    assert FORMATS["Ascend"].mixture_refusal(found) is None

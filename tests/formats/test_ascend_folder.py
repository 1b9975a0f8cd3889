"""An Ascend folder, seen by a reader and a rule checker that share no code with the writer."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ascend_rules
from ascend_reader import AscendFolder, RebuiltLinear, read_ascend, rebuild_linears
from quantfleet_api.plan import LinearScheme
from quantfleet_worker.schemes import QuantizedLinear, dequantized_weight
from rtn_folder import (
    Recipe,
    everywhere,
    make_plan,
    quantize,
    scheme,
    source_tensors,
    write_folder,
)
from tiny_models import FamilyName, make_tiny_model

STATIC, DYNAMIC = scheme("W8A8", input_symmetric=False), scheme("W8A8Dynamic")


def mixed(name: str) -> LinearScheme | None:
    if name == "lm_head" or "layers.1.mlp.down_proj" in name:
        return None
    if "o_proj" in name:
        return scheme("W8A16")
    return STATIC if "self_attn" in name else DYNAMIC


def written(
    folder: Path, source: Path, recipe: Recipe
) -> tuple[AscendFolder, dict[str, QuantizedLinear]]:
    plan = make_plan(source, recipe, ("Ascend",))
    ranges = {
        linear.name: (-0.3 * layer.index, 1.7)
        for layer in plan.layers
        for site in layer.sites
        for linear in site.linears
    }
    quantized = quantize(plan, source_tensors(source), ranges)
    return read_ascend(write_folder(folder, source, plan, "Ascend", quantized)), quantized


def assert_rebuilt(
    rebuilt: dict[str, RebuiltLinear], quantized: dict[str, QuantizedLinear]
) -> None:
    """The files stand for these linears: to float32 rounding, biases to half a step."""
    assert rebuilt.keys() == quantized.keys()
    for name, found in rebuilt.items():
        expected, original = dequantized_weight(quantized[name]), quantized[name]
        torch.testing.assert_close(found.weight, expected, rtol=3e-7, atol=0)
        step = torch.zeros(1)
        if original.input_scale is not None:
            step = original.input_scale * original.scale[:, 0]
            assert found.input_scale == float(original.input_scale)
            zero_point = original.input_zero_point
            assert found.input_offset == (0 if zero_point is None else int(zero_point))
        if original.bias is None:
            assert found.bias is None or not found.bias.any()
        else:
            assert found.bias is not None
            rounding = 0.5 * step + 2e-7 * original.bias.abs()  # half a step, and float32
            assert bool(((found.bias - original.bias).abs() <= rounding).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen2", False), ("qwen3", True)])
@pytest.mark.parametrize(
    "recipe",
    [everywhere(STATIC), everywhere(scheme("W8A8")), everywhere(DYNAMIC), mixed],
    ids=["asymmetric", "symmetric", "dynamic", "mixed"],
)
def test_an_independent_reader_rebuilds_the_linears(
    recipe: Recipe, family: FamilyName, tied: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    source = make_tiny_model(tmp_path / "source", family, dtype=dtype, tied=tied, tokenizer=False)

    folder, quantized = written(tmp_path / "out", source, recipe)

    assert ascend_rules.violations(folder) == []
    assert_rebuilt(rebuild_linears(folder), quantized)
    floats = {name for name, kind in folder.description.items() if kind == "FLOAT"}
    originals = source_tensors(source)
    copied = floats & originals.keys() - {f"{name}.bias" for name in quantized}
    assert {"model.norm.weight", "model.embed_tokens.weight"} <= copied
    assert all(torch.equal(folder.tensors[name], originals[name]) for name in copied)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[AscendFolder, dict[str, Any]]:
    root = tmp_path_factory.mktemp("ascend")
    source = make_tiny_model(root / "source", "qwen2", dtype=torch.bfloat16, tokenizer=False)
    return written(root / "out", source, mixed)


@pytest.fixture(scope="module")
def tied_llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AscendFolder]:
    root = tmp_path_factory.mktemp("ascend")
    source = make_tiny_model(root / "source", tied=True, tokenizer=False)
    return root / "out", written(root / "out", source, everywhere(STATIC))[0]


def test_the_server_computes_the_fake_quantized_linear(
    qwen: tuple[AscendFolder, dict[str, QuantizedLinear]],
) -> None:
    folder, quantized = qwen
    name = "model.layers.0.self_attn.q_proj"
    tensors, original = folder.tensors, quantized[name]
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    codes = torch.clamp(
        torch.round(x / tensors[f"{name}.input_scale"] + tensors[f"{name}.input_offset"]), -128, 127
    )

    sums = codes.long() @ tensors[f"{name}.weight"].long().T + tensors[f"{name}.quant_bias"]
    served = sums * tensors[f"{name}.deq_scale"]

    assert original.input_scale is not None
    assert original.input_zero_point is not None
    assert original.bias is not None
    fake = (codes.double() - original.input_zero_point) * original.input_scale
    meant = fake @ dequantized_weight(original).double().T + original.bias
    rounding = 0.5 * original.input_scale * original.scale[:, 0] + 3e-7 * meant.abs()
    assert bool(((served - meant).abs() <= rounding).all())


def test_description_of_a_tied_static_model(tied_llama: tuple[Path, AscendFolder]) -> None:
    path, folder = tied_llama
    layer = {
        "input_layernorm.weight": "FLOAT",
        "post_attention_layernorm.weight": "FLOAT",
    } | {
        f"{module}.{leaf}": "W8A8"
        for module in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
        for leaf in ("weight", "input_scale", "input_offset", "deq_scale", "quant_bias")
    }

    assert folder.description == {
        "model.embed_tokens.weight": "FLOAT",
        "model.norm.weight": "FLOAT",
        "lm_head.weight": "FLOAT",
        "version": "1.0.0",
        "model_quant_type": "W8A8",
        "metadata": {},
        "group_size": 0,
        "optional": {},
        **{f"model.layers.{i}.{name}": kind for i in range(2) for name, kind in layer.items()},
    }
    text = (path / "quant_model_description.json").read_text()
    assert list(json.loads(text)) == sorted(folder.description)
    assert torch.equal(
        folder.tensors["lm_head.weight"], folder.tensors["model.embed_tokens.weight"]
    )
    assert folder.config["tie_word_embeddings"] is True


def test_bits_of_deq_scale_are_widened_for_other_dtypes_than_bfloat16(
    qwen: tuple[AscendFolder, dict[str, QuantizedLinear]], tied_llama: tuple[Path, AscendFolder]
) -> None:
    name = "model.layers.0.self_attn.q_proj.deq_scale"

    assert qwen[0].tensors[name].dtype == torch.float32
    wide = tied_llama[1].tensors[name]
    assert wide.dtype == torch.int64
    assert 0 < int(wide.min()) <= int(wide.max()) < 2**31


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.deq_scale",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.input_scale",
        "model.layers.0.self_attn.q_proj.input_offset",
        "model.layers.0.self_attn.q_proj.quant_bias",
        "model.layers.0.mlp.up_proj.weight_scale",
        "model.layers.0.self_attn.o_proj.weight_offset",
    ],
)
def test_the_reader_sees_one_wrong_value(
    name: str, qwen: tuple[AscendFolder, dict[str, QuantizedLinear]]
) -> None:
    folder, quantized = qwen
    wrong = folder.tensors[name].clone()
    wrong.view(-1)[:1].mul_(2).add_(1)

    with pytest.raises(AssertionError):
        assert_rebuilt(rebuild_linears(changed(folder, **{name: wrong})), quantized)


def changed(folder: AscendFolder, **tensors: torch.Tensor) -> AscendFolder:
    return replace(folder, tensors=folder.tensors | tensors)


def described(folder: AscendFolder, **description: Any) -> AscendFolder:
    return replace(folder, description=folder.description | description)


def without(folder: AscendFolder, *names: str) -> AscendFolder:
    kept = {name: kind for name, kind in folder.description.items() if name not in names}
    return replace(folder, description=kept)


Q, OUT, UP = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.self_attn.o_proj",
    "model.layers.0.mlp.up_proj",
)
ONE = torch.ones(1)
BROKEN: list[tuple[str, Callable[[AscendFolder], AscendFolder]]] = [
    (
        "config_has_no_quantization",
        lambda f: replace(f, config=f.config | {"quantization_config": {}}),
    ),
    (
        "config_has_no_quantization",
        lambda f: replace(f, config=f.config | {"text_config": {"quantization_config": {}}}),
    ),
    ("every_tensor_is_described", lambda f: without(f, "model.norm.weight")),
    ("every_tensor_is_described", lambda f: described(f, **{"no.such.weight": "FLOAT"})),
    ("head_and_embedding_are_described", lambda f: without(f, "lm_head.weight")),
    ("types_are_registered", lambda f: described(f, **{f"{UP}.weight": "W4A8_DYNAMIC"})),
    ("a_linear_has_one_type", lambda f: described(f, **{f"{UP}.weight_scale": "FLOAT"})),
    ("a_linear_has_one_type", lambda f: described(f, **{f"{Q}.bias": "W8A8"})),
    ("fused_linears_share_a_type", lambda f: described(f, **{f"{Q}.weight": "W8A8_DYNAMIC"})),
    ("fused_linears_share_input_parameters", lambda f: changed(f, **{f"{Q}.input_scale": ONE})),
    ("fused_linears_share_input_parameters", lambda f: changed(f, **{f"{Q}.input_offset": ONE})),
    ("static_linears_have_their_tensors", lambda f: changed(f, **{f"{Q}.quant_bias": ONE})),
    (
        "static_linears_have_their_tensors",
        lambda f: replace(f, config=f.config | {"dtype": "float16"}),
    ),
    (
        "static_linears_have_their_tensors",
        lambda f: replace(f, tensors={k: t for k, t in f.tensors.items() if "deq_scale" not in k}),
    ),
    ("row_scaled_linears_have_their_tensors", lambda f: changed(f, **{f"{UP}.weight_scale": ONE})),
    (
        "row_scaled_linears_have_their_tensors",
        lambda f: changed(f, **{f"{OUT}.weight_offset": ONE}),
    ),
    ("input_offsets_are_int8", lambda f: changed(f, **{f"{Q}.input_offset": 0.5 * ONE})),
    ("input_offsets_are_int8", lambda f: changed(f, **{f"{Q}.input_offset": 128 * ONE})),
    ("weight_offsets_are_zero", lambda f: changed(f, **{f"{OUT}.weight_offset": ONE})),
    ("scales_are_positive", lambda f: changed(f, **{f"{Q}.input_scale": 0 * ONE})),
    ("scales_are_positive", lambda f: changed(f, **{f"{UP}.weight_scale": ONE / 0})),
    ("scales_are_positive", lambda f: changed(f, **{f"{Q}.deq_scale": torch.tensor([1 << 33])})),
    ("group_size_is_absent", lambda f: described(f, group_size=32)),
    ("model_type_is_the_highest", lambda f: described(f, model_quant_type="FLOAT")),
    ("cache_scales_need_their_setting", lambda f: described(f, kv_cache_type="C8")),
    ("files_are_named_and_indexed", lambda f: replace(f, index=None)),
    (
        "files_are_named_and_indexed",
        lambda f: replace(f, holders=f.holders | {"model.norm.weight": "other.safetensors"}),
    ),
    ("files_are_named_and_indexed", lambda f: changed(f, **{"model.norm.weight": ONE})),
    ("float_tensors_are_float", lambda f: described(f, **{f"{UP}.weight": "FLOAT"})),
]


@pytest.mark.parametrize(
    ("rule", "break_it"), BROKEN, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(BROKEN)]
)
def test_a_folder_that_breaks_a_rule_is_caught_by_it(
    rule: str,
    break_it: Callable[[AscendFolder], AscendFolder],
    qwen: tuple[AscendFolder, dict[str, QuantizedLinear]],
) -> None:
    folder, _ = qwen
    check = getattr(ascend_rules, rule)

    assert check(folder) == []
    assert check(break_it(folder)) != []


def test_every_rule_has_a_folder_that_breaks_it() -> None:
    assert {rule for rule, _ in BROKEN} == {rule.__name__ for rule in ascend_rules.RULES}

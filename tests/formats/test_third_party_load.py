"""Stock transformers with compressed-tensors load what is written and compute what was meant."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from quantfleet_api.plan import ActivationScheme, LinearScheme, Plan
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.schemes import TORCH_DTYPES, QuantizedLinear, dequantized_weight
from rtn_folder import Recipe, everywhere, make_plan, quantize, scheme, source_tensors, write_folder
from tiny_models import FamilyName, make_tiny_model

TOKENS = torch.randint(3, 500, (2, 24), generator=torch.Generator().manual_seed(5))

W8A8, ASYMMETRIC = scheme("W8A8"), scheme("W8A8", input_symmetric=False)
DYNAMIC, W8A16 = scheme("W8A8Dynamic"), scheme("W8A16")
DYNAMIC_ASYMMETRIC = DYNAMIC.model_copy(
    update={"activations": ActivationScheme(kind="dynamic", symmetric=False)}
)
RECIPES: dict[str, LinearScheme] = {
    "W8A8": W8A8,
    "W8A8-asymmetric": ASYMMETRIC,
    "W8A8Dynamic": DYNAMIC,
    "W8A8Dynamic-asymmetric": DYNAMIC_ASYMMETRIC,
    "W8A16": W8A16,
    "W8A16-g32": scheme("W8A16", group_size=32),
    "W8A16-asymmetric": scheme("W8A16", symmetric=False),
    "W4A16-channel": scheme("W4A16"),
    "W4A16-g32": scheme("W4A16", group_size=32),
    "W4A16-channel-asymmetric": scheme("W4A16", symmetric=False),
    "W4A16-g32-asymmetric": scheme("W4A16", symmetric=False, group_size=32),
}


def mixed(name: str) -> LinearScheme | None:
    """Every kind at once; each fused unit of a server has one scheme."""
    if "layers.1.mlp.down_proj" in name or name == "lm_head":
        return None
    if "down_proj" in name:
        return scheme("W4A16")
    if "o_proj" in name:
        return DYNAMIC if "layers.0" in name else W8A16
    return ASYMMETRIC if "self_attn" in name else scheme("W4A16", group_size=32)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model as stock transformers loads it: no key missing, unexpected or of another shape."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


@torch.no_grad()
def logits(model: Any) -> Tensor:
    found: Tensor = model(TOKENS).logits.float()
    return found


@contextmanager
def hooked(
    model: Any, names: Iterator[str], hook: Callable[[str, Tensor], Tensor]
) -> Iterator[None]:
    """Every named linear's input goes through `hook(name, input)`."""
    handles = []
    for name in names:

        def pre_hook(_: Any, inputs: tuple[Tensor], name: str = name) -> tuple[Tensor]:
            return (hook(name, inputs[0]),)

        handles.append(model.get_submodule(name).register_forward_pre_hook(pre_hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def input_ranges(source: Path, plan: Plan) -> dict[str, tuple[float, float]]:
    """Range of each linear's input over the tokens, zero included."""
    ranges: dict[str, tuple[float, float]] = {}

    def observe(name: str, x: Tensor) -> Tensor:
        ranges[name] = (min(0.0, float(x.min())), max(0.0, float(x.max())))
        return x

    model = load(source)
    with hooked(model, iter(schemes_of(plan)), observe):
        logits(model)
    return ranges


def schemes_of(plan: Plan) -> dict[str, LinearScheme]:
    linears = [x for layer in plan.layers for site in layer.sites for x in site.linears]
    return {x.name: x.scheme for x in linears if x.scheme is not None}


def meant_logits(source: Path, plan: Plan, quantized: dict[str, QuantizedLinear]) -> Tensor:
    """A plain model with dequantized weights whose linear inputs are coded and decoded."""
    model, schemes = load(source), schemes_of(plan)
    for name, found in quantized.items():
        weight, weights = dequantized_weight(found), schemes[name].weights
        if weights.bits == 4 and not weights.symmetric:  # decoded in the dtype of the scale
            weight = weight.to(TORCH_DTYPES[plan.model_dtype]).float()
        model.get_submodule(name).weight.data = weight

    def code_input(name: str, x: Tensor) -> Tensor:
        activations, found = schemes[name].activations, quantized[name]
        if activations is None:
            return x
        scale: Tensor = x.abs().amax(-1, keepdim=True) / 127.5
        zero_point = torch.zeros(1)
        if not activations.symmetric:
            low = x.amin(-1, keepdim=True).clamp(max=0)
            scale = (x.amax(-1, keepdim=True).clamp(min=0) - low) / 255
            zero_point = torch.round((-128 - low / scale).clamp(-128, 127))
        if activations.kind == "static":
            assert found.input_scale is not None
            scale = found.input_scale
            if found.input_zero_point is not None:
                zero_point = found.input_zero_point.float()
        codes = torch.round(torch.clamp(x / scale + zero_point, -128, 127))
        return (codes - zero_point) * scale

    with hooked(model, iter(schemes), code_input):
        return logits(model)


def write_quantized(
    folder: Path, source: Path, recipe: Recipe
) -> tuple[Plan, dict[str, QuantizedLinear]]:
    plan = make_plan(source, recipe, ("CompressedTensors",))
    quantized = quantize(plan, source_tensors(source), input_ranges(source, plan))
    write_folder(folder, source, plan, "CompressedTensors", quantized)
    return plan, quantized


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("source") / "llama", tied=True, tokenizer=False)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "qwen"
    return make_tiny_model(folder, "qwen2", dtype=torch.bfloat16, tokenizer=False)


@pytest.mark.parametrize("family", ["llama", "qwen"])
@pytest.mark.parametrize("found", RECIPES.values(), ids=RECIPES.keys())
def test_logits_are_those_of_the_decoded_model(
    found: LinearScheme, family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Path = request.getfixturevalue(family)

    plan, quantized = write_quantized(tmp_path / "out", source, everywhere(found))

    torch.testing.assert_close(
        logits(load(tmp_path / "out")),
        meant_logits(source, plan, quantized),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("family", ["llama", "qwen"])
def test_mixed_schemes_load(family: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source: Path = request.getfixturevalue(family)

    plan, quantized = write_quantized(tmp_path / "out", source, mixed)

    torch.testing.assert_close(
        logits(load(tmp_path / "out")),
        meant_logits(source, plan, quantized),
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_quantized_head_loads(qwen: Path, tmp_path: Path) -> None:
    plan, quantized = write_quantized(tmp_path / "out", qwen, lambda name: DYNAMIC)

    torch.testing.assert_close(
        logits(load(tmp_path / "out")), meant_logits(qwen, plan, quantized), rtol=1e-5, atol=1e-5
    )
    assert "lm_head" in quantized


@pytest.mark.parametrize("found", RECIPES.values(), ids=RECIPES.keys())
def test_a_bfloat16_model_loads_in_its_own_dtype(
    found: LinearScheme, qwen: Path, tmp_path: Path
) -> None:
    plan, quantized = write_quantized(tmp_path / "out", qwen, everywhere(found))

    loaded = logits(load(tmp_path / "out", torch.bfloat16))

    meant = meant_logits(qwen, plan, quantized)
    assert float((loaded - meant).norm() / meant.norm()) < 0.2


@pytest.mark.parametrize("leaf", ["weight_scale", "input_scale", "input_zero_point", "weight"])
def test_one_wrong_value_shows(leaf: str, qwen: Path, tmp_path: Path) -> None:
    plan, quantized = write_quantized(tmp_path / "out", qwen, everywhere(ASYMMETRIC))
    path = tmp_path / "out" / FORMATS["CompressedTensors"].file_names(4)[1]
    tensors = load_file(path)
    tensors[f"model.layers.0.mlp.up_proj.{leaf}"].view(-1)[:1].mul_(2).add_(1)
    save_file(tensors, path, metadata={"format": "pt"})

    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        torch.testing.assert_close(
            logits(load(tmp_path / "out")),
            meant_logits(qwen, plan, quantized),
            rtol=1e-5,
            atol=1e-5,
        )


def test_a_missing_scale_shows(qwen: Path, tmp_path: Path) -> None:
    write_quantized(tmp_path / "out", qwen, everywhere(W8A8))
    path = tmp_path / "out" / FORMATS["CompressedTensors"].file_names(4)[1]
    tensors = load_file(path)
    del tensors["model.layers.0.mlp.up_proj.weight_scale"]
    save_file(tensors, path, metadata={"format": "pt"})
    index = tmp_path / "out" / FORMATS["CompressedTensors"].index_name
    content = json.loads(index.read_text())
    del content["weight_map"]["model.layers.0.mlp.up_proj.weight_scale"]
    index.write_text(json.dumps(content))

    with pytest.raises(AssertionError):
        load(tmp_path / "out")


@pytest.mark.parametrize("family", ["mistral", "qwen3"])
def test_other_families_load(family: FamilyName, tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", family, tokenizer=False)

    plan, quantized = write_quantized(tmp_path / "out", source, mixed)

    torch.testing.assert_close(
        logits(load(tmp_path / "out")), meant_logits(source, plan, quantized), rtol=1e-5, atol=1e-5
    )

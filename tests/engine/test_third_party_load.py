"""What the engine publishes is what others load: stock transformers, and readers of Ascend."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ascend_reader import read_ascend, rebuild_linears
from ascend_rules import violations
from decoded_model import (
    decoded_linears,
    decoded_model,
    load_stock,
    logits,
    published_tensors,
    quantized_linears,
)
from engine_runs import BOTH, Manifest, Place, make_manifest, make_place
from quantfleet_api.loading import parse_job
from quantfleet_api.plan import Plan
from quantfleet_worker.planning import make_plan
from quantfleet_worker.schemes import dequantized_weight
from tiny_models import FAMILIES

pytestmark = pytest.mark.distributed

SMOOTH = {"transforms": [{"smoothQuant": {"alpha": "0.6"}}]}


def weights(method: str = "RTN", **options: Any) -> dict[str, Any]:
    return {"weights": {"method": method, **options}}


def override(target: str, scheme: str) -> dict[str, Any]:
    return {"targets": [target], "scheme": scheme}


W8A8_OVERRIDES = [
    override("*.layers.1.mlp.down_proj", "W8A8Dynamic"),
    override("*.layers.0.self_attn.o_proj", "W8A16"),
    override("*.layers.1.self_attn.o_proj", "None"),
]
RECIPES: dict[str, dict[str, Any]] = {
    "W8A8": {"scheme": "W8A8"},
    "W8A8-symmetric-MSE": {
        "scheme": "W8A8", "activations": {"symmetric": True, "observer": "MSE"},
    },
    "W8A8-GPTQ-Percentile": {
        "scheme": "W8A8", **weights("GPTQ"), "activations": {"observer": "Percentile"},
    },
    "W8A8-smooth": {"scheme": "W8A8", **SMOOTH},
    "W8A8-smooth-overrides-head": {
        "scheme": "W8A8", **SMOOTH, "overrides": W8A8_OVERRIDES, "ignore": [],
    },
    "W8A8Dynamic": {"scheme": "W8A8Dynamic"},
    "W8A8Dynamic-smooth-head": {"scheme": "W8A8Dynamic", **SMOOTH, "ignore": []},
    "W8A16": {"scheme": "W8A16"},
    "W8A16-smooth": {"scheme": "W8A16", **SMOOTH},
}  # fmt: skip
COMPRESSED_ONLY: dict[str, dict[str, Any]] = {
    "W8A16-g32": {"scheme": "W8A16", **weights(groupSize=32)},
    "W8A16-asymmetric": {"scheme": "W8A16", **weights(symmetric=False)},
    "W4A16-channel": {"scheme": "W4A16", **weights(groupSize=0)},
    "W4A16-g32": {"scheme": "W4A16", **weights(groupSize=32)},
    "W4A16-channel-asymmetric": {"scheme": "W4A16", **weights(groupSize=0, symmetric=False)},
    "W4A16-g32-asymmetric": {"scheme": "W4A16", **weights(groupSize=32, symmetric=False)},
    "W4A16-g32-asymmetric-head": {
        "scheme": "W4A16", **weights(groupSize=32, symmetric=False), "ignore": [],
    },
    "W4A16-GPTQ": {"scheme": "W4A16", **weights("GPTQ", groupSize=32)},
    "W4A16-GPTQ-asymmetric-smooth": {
        "scheme": "W4A16", **weights("GPTQ", groupSize=32, symmetric=False), **SMOOTH,
    },
    "W4A16-GPTQ-overrides": {
        "scheme": "W4A16",
        **weights("GPTQ", groupSize=32, gptq={"activationOrder": False}),
        "overrides": [override("*.down_proj", "W8A8"), override("*.o_proj", "W8A16")],
    },
}  # fmt: skip
CHECKPOINTS = [
    f"{family}-{dtype}-{tied}"
    for tied, dtype in (("untied", "bfloat16"), ("tied", "float32"))
    for family in FAMILIES
]


def dealt(recipes: dict[str, dict[str, Any]]) -> list[Any]:
    """Two checkpoints a recipe, all of them in turn; one is tied and one is not."""
    return [
        pytest.param(recipe, checkpoint, id=f"{name}-{checkpoint}")
        for number, (name, recipe) in enumerate(recipes.items())
        for checkpoint in (CHECKPOINTS[number % 4], CHECKPOINTS[4 + (number + 1) % 4])
    ]


def plan_of(place: Place, manifest: Manifest) -> Plan:
    return make_plan(parse_job(manifest), volumes=place.volumes).plan


def check_loads(place: Place, manifest: Manifest, source: Path, folder: Path) -> None:
    plan = plan_of(place, manifest)
    with decoded_model(source, plan, folder) as meant:
        expected = logits(meant)
    torch.testing.assert_close(logits(load_stock(folder)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("recipe", "checkpoint"), dealt({**RECIPES, **COMPRESSED_ONLY}))
def test_stock_transformers_computes_the_decoded_model(
    recipe: dict[str, Any], checkpoint: str, place: Place, tiny_checkpoints: dict[str, Path]
) -> None:
    manifest = make_manifest(checkpoint, recipe)
    place.publish(manifest, ranks=2)

    check_loads(place, manifest, tiny_checkpoints[checkpoint], place.output())


@pytest.mark.demo
@pytest.mark.parametrize("scheme", ["W8A8", "W4A16"])
def test_the_real_model_loads(scheme: str, tmp_path: Path, demo: Any) -> None:
    place = make_place(tmp_path, models={"smollm2": demo.cut_model})
    recipe = {"scheme": scheme, **SMOOTH}
    if scheme == "W4A16":
        recipe |= weights("GPTQ", groupSize=64, symmetric=False)
    manifest = make_manifest("smollm2", recipe)
    place.publish(manifest, ranks=2)

    check_loads(place, manifest, demo.cut_model, place.output())


@pytest.mark.parametrize("leaf", ["weight_scale", "input_zero_point", "weight"])
def test_one_wrong_value_shows(leaf: str, place: Place, tiny_checkpoints: dict[str, Path]) -> None:
    manifest = make_manifest("llama-float32-untied", {"scheme": "W8A8"})
    place.publish(manifest)
    source, output = tiny_checkpoints["llama-float32-untied"], place.output()
    plan = plan_of(place, manifest)
    with decoded_model(source, plan, output) as meant:
        expected = logits(meant)
    name = f"model.layers.0.mlp.up_proj.{leaf}"
    path = next(p for p in output.glob("*.safetensors") if name in load_file(p))
    tensors = load_file(path)
    tensors[name].view(-1)[:1].mul_(2).add_(1)
    save_file(tensors, path, metadata={"format": "pt"})

    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(logits(load_stock(output)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("formats", [BOTH, tuple(reversed(BOTH)), BOTH[:1]])
def test_the_reported_perplexity_is_that_of_the_loaded_model(
    formats: tuple[str, ...], place: Place
) -> None:
    gate = {"windowCount": 3, "windowLength": 32}
    # without biases the formats mean the same model to the last bit
    manifest = make_manifest(
        "llama-bfloat16-untied",
        {"scheme": "W8A8", "ignore": []},
        formats=formats,
        evaluation=gate,
    )
    report = place.publish(manifest, ranks=2).report
    folder = place.output() / "compressed-tensors" if len(formats) > 1 else place.output()
    windows = make_plan(parse_job(manifest), volumes=place.volumes).windows
    assert windows is not None
    tokens = torch.from_numpy(windows)

    found = logits(load_stock(folder), tokens)

    losses = torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert report is not None
    assert report["evaluation"]["quantizedPerplexity"] == pytest.approx(
        float(losses.exp()), rel=1e-4
    )


@pytest.fixture
def both_formats(place: Place) -> Callable[[dict[str, Any], str], tuple[Plan, Path]]:
    """Publishes both formats from one run; gives the plan and the output."""

    def publish(recipe: dict[str, Any], checkpoint: str) -> tuple[Plan, Path]:
        manifest = make_manifest(checkpoint, recipe, formats=BOTH)
        place.publish(manifest, ranks=2)
        return plan_of(place, manifest), place.output()

    return publish


@pytest.mark.parametrize(("recipe", "checkpoint"), dealt(RECIPES))
def test_ascend_keeps_every_rule_and_means_the_same_model(
    recipe: dict[str, Any],
    checkpoint: str,
    both_formats: Callable[[dict[str, Any], str], tuple[Plan, Path]],
) -> None:
    plan, output = both_formats(recipe, checkpoint)
    ascend = read_ascend(output / "ascend")
    tensors = published_tensors(output / "compressed-tensors")

    assert violations(ascend) == []
    decoded, rebuilt = decoded_linears(plan, tensors), rebuild_linears(ascend)
    assert rebuilt.keys() == decoded.keys()
    for name, linear in rebuilt.items():
        expected = decoded[name]
        torch.testing.assert_close(
            linear.weight, dequantized_weight(expected), rtol=1e-6, atol=0, msg=name
        )
        if expected.input_scale is not None:
            zero = 0 if expected.input_zero_point is None else int(expected.input_zero_point)
            assert linear.input_scale == float(expected.input_scale), name
            assert linear.input_offset == zero, name
        _check_bias(name, linear, expected)
    quantized = quantized_linears(plan)
    floats = {
        name: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] not in quantized
    }
    assert floats
    for name, tensor in floats.items():
        assert torch.equal(ascend.tensors[name], tensor), name
        assert ascend.description[name] == "FLOAT", name


def _check_bias(name: str, linear: Any, expected: Any) -> None:
    """A static linear's bias is rounded to the step of its accumulator; others keep theirs."""
    if linear.kind == "W8A8":
        bias = torch.zeros(len(linear.weight)) if expected.bias is None else expected.bias
        step = expected.scale.flatten() * expected.input_scale
        # the bias of the other format has been rounded to the model's dtype
        allowed = step * 0.51 + bias.abs() * 2**-8
        assert bool(((linear.bias - bias).abs() <= allowed).all()), name
    elif expected.bias is None:
        assert linear.bias is None, name
    else:
        torch.testing.assert_close(linear.bias, expected.bias, rtol=2**-8, atol=0, msg=name)

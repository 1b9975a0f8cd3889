"""What a family file says is what its classes are, and what it does not cover is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.models.family import Family
from quantfleet_worker.models.layers import Blocks
from quantfleet_worker.models.registry import FAMILIES as REGISTERED
from quantfleet_worker.models.registry import family_of
from tiny_models import FAMILIES, FamilyName, make_tiny_model


def tiny_config(family: FamilyName, **changes: Any) -> dict[str, Any]:
    base = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 512,
    }
    return {**base, **changes}


def tiny_blocks(family: Family) -> Blocks:
    config = next(tiny_config(name) for name in FAMILIES if name == family.name)
    return Blocks(family, config, torch.float32)


@pytest.mark.parametrize("family", REGISTERED, ids=lambda family: family.name)
def test_sites_name_every_linear_once_and_norms_every_norm(family: Family) -> None:
    module = tiny_blocks(family).decoder(0)
    linears = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    norms = [name for name, child in module.named_modules() if "RMSNorm" in type(child).__name__]
    assert sorted(name for site in family.sites for name in site.linears) == sorted(linears)
    assert sorted(family.norms) == sorted(norms)


@pytest.mark.parametrize("family", REGISTERED, ids=lambda family: family.name)
def test_linears_of_a_site_share_one_input_and_run_in_the_order_of_sites(family: Family) -> None:
    blocks = tiny_blocks(family)
    module = blocks.decoder(0)
    shapes = blocks.parameters(0)
    generator = torch.Generator().manual_seed(0)
    blocks.assign(module, {n: torch.randn(s, generator=generator) for n, s in shapes.items()})
    inputs: dict[str, torch.Tensor] = {}
    for name in (name for site in family.sites for name in site.linears):

        def record(_: nn.Module, args: tuple[torch.Tensor], name: str = name) -> None:
            inputs[name] = args[0]

        module.get_submodule(name).register_forward_pre_hook(record)
    blocks.run(module, torch.randn(1, 5, 64, generator=generator))
    assert list(inputs) == [name for site in family.sites for name in site.linears]
    for site in family.sites:
        assert all(inputs[name] is inputs[site.linears[0]] for name in site.linears)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_config_finds_its_family_and_passes_the_preflight(
    tmp_path: Path, name: FamilyName
) -> None:
    make_tiny_model(tmp_path, name, tokenizer=False)
    config = json.loads((tmp_path / "config.json").read_text())
    before = json.dumps(config)
    family = family_of(config)
    Blocks(family, config, torch.float32).check_arguments()
    assert family.name == name
    assert json.dumps(config) == before


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": (
        tiny_config("llama", architectures=["MixtralForCausalLM"]),
        "spec.model.source: architecture must be one of LlamaForCausalLM, MistralForCausalLM, "
        "Qwen2ForCausalLM, Qwen3ForCausalLM, got 'MixtralForCausalLM'",
    ),
    "none": ({"model_type": "llama"}, "architecture must be one of"),
    "two": (
        tiny_config("llama", architectures=["LlamaForCausalLM", "LlamaModel"]),
        "got 'LlamaForCausalLM, LlamaModel'",
    ),
    "not-a-name": (tiny_config("llama", architectures=[{"a": 1}]), "architecture must be one of"),
    "model-type": (tiny_config("llama", model_type="qwen2"), "model_type: must be llama"),
    "quantized": (
        tiny_config("qwen2", quantization_config={"quant_method": "awq"}),
        "quantization_config: must be absent",
    ),
    "experts": (tiny_config("llama", num_local_experts=8), "num_local_experts: must be absent"),
    "custom-code": (
        tiny_config("llama", auto_map={"AutoModelForCausalLM": "modeling_x.Y"}),
        "auto_map: must not name model code",
    ),
    "llama-window": (tiny_config("llama", sliding_window=64), "sliding_window: must be null"),
    "window-zero": (tiny_config("mistral", sliding_window=0), "sliding_window: must be null or a"),
    "window-text": (tiny_config("mistral", sliding_window="8"), "sliding_window: must be null or"),
    "mistral-mixed": (
        tiny_config(
            "mistral", sliding_window=8, layer_types=["full_attention", "sliding_attention"]
        ),
        "layer_types: must give each layer one of sliding_attention",
    ),
    "unused-window": (
        tiny_config("qwen3", sliding_window=8, layer_types=["sliding_attention"] * 2),
        "layer_types: must give each layer one of full_attention",
    ),
    "other-attention": (
        tiny_config(
            "qwen2",
            use_sliding_window=True,
            layer_types=["full_attention", "chunked_attention"],
        ),
        "layer_types: must give each layer one of full_attention, sliding_attention",
    ),
    "layer-count": (tiny_config("qwen3", layer_types=["full_attention"]), "layer_types: must give"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_we_cannot_run_faithfully_is_refused_by_name(case: str) -> None:
    config, message = REFUSED[case]
    with pytest.raises(InvalidInput) as caught:
        family_of(config)
    assert message in str(caught.value)


UNUSABLE = {
    "text-size": {"hidden_size": "64"},
    "no-heads": {"num_attention_heads": 0},
    "odd-heads": {"num_attention_heads": 5},
    "unknown-rope": {"rope_scaling": {"rope_type": "spiral", "factor": 2.0}},
    "unknown-activation": {"hidden_act": "wavy"},
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_config_that_transformers_refuses_is_the_users_error(case: str) -> None:
    config = tiny_config("llama", **UNUSABLE[case])
    family = family_of(config)
    with pytest.raises(InvalidInput, match=r"config\.json: transformers must accept it") as caught:
        Blocks(family, config, torch.float32).check_arguments()
    assert "\n" not in str(caught.value)


def test_an_argument_that_the_family_does_not_know_is_refused() -> None:
    family = dataclasses.replace(REGISTERED[0], layer_arguments=frozenset({"hidden_states"}))
    with pytest.raises(InvalidInput, match=r"attention_mask.*position_embeddings"):
        tiny_blocks(family).check_arguments()

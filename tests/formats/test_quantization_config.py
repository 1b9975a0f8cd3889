"""config.json of a compressed-tensors folder, and which linears its patterns reach."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from compressed_tensors.quantization import QuantizationConfig
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_api.plan import LinearScheme, Plan
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.formats.metadata import linears_of
from quantfleet_worker.formats.quantization_config import name_patterns
from rtn_folder import Recipe, everywhere, make_plan, scheme
from tiny_models import make_tiny_model

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tied") / "llama", tied=True, tokenizer=False)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("untied") / "llama", tokenizer=False, layers=3)


def config_of(plan: Plan, source: Path) -> dict[str, Any]:
    config = json.loads((source / "config.json").read_text())
    files = FORMATS["CompressedTensors"].metadata_files(plan, config)
    found: dict[str, Any] = json.loads(files["config.json"])
    return found


def written(source: Path, recipe: Recipe) -> tuple[Plan, dict[str, Any]]:
    plan = make_plan(source, recipe, ("CompressedTensors",))
    found: dict[str, Any] = config_of(plan, source)["quantization_config"]
    QuantizationConfig.model_validate(found)
    return plan, found


def mixed(name: str) -> LinearScheme | None:
    if name in ("lm_head", "model.layers.1.mlp.down_proj"):
        return None
    if "down_proj" in name:
        return scheme("W8A8Dynamic")
    if "o_proj" in name:
        return scheme("W8A16")
    return scheme("W8A8", input_symmetric=False)


def matches(target: str, name: str) -> bool:
    pattern = re.fullmatch("re:(.*)", target)
    return bool(re.match(pattern[1], name)) if pattern else target == name


def test_one_scheme_targets_the_class_and_ignores_the_tied_head(tied: Path) -> None:
    _, found = written(tied, everywhere(scheme("W8A8", input_symmetric=False)))

    assert found == {
        "config_groups": {
            "group_0": {
                "format": "int-quantized",
                "input_activations": {
                    "dynamic": False,
                    "group_size": None,
                    "num_bits": 8,
                    "strategy": "tensor",
                    "symmetric": False,
                    "type": "int",
                },
                "output_activations": None,
                "targets": ["Linear"],
                "weights": {
                    "dynamic": False,
                    "group_size": None,
                    "num_bits": 8,
                    "strategy": "channel",
                    "symmetric": True,
                    "type": "int",
                },
            }
        },
        "format": "int-quantized",
        "global_compression_ratio": None,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_zero_points_are_decoded_while_loading(symmetric: bool, tied: Path) -> None:
    _, found = written(tied, everywhere(scheme("W4A16", symmetric=symmetric)))

    assert found.get("dequantize", False) is not symmetric


def test_grouped_weights_say_so(tied: Path) -> None:
    _, found = written(tied, everywhere(scheme("W4A16", symmetric=False, group_size=32)))

    assert found["format"] == "pack-quantized"
    assert found["config_groups"]["group_0"]["input_activations"] is None
    assert found["config_groups"]["group_0"]["weights"] == {
        "dynamic": False,
        "group_size": 32,
        "num_bits": 4,
        "strategy": "group",
        "symmetric": False,
        "type": "int",
    }


def test_a_token_is_a_dynamic_strategy(tied: Path) -> None:
    _, found = written(tied, everywhere(scheme("W8A8Dynamic")))

    activations = found["config_groups"]["group_0"]["input_activations"]
    assert (activations["strategy"], activations["dynamic"]) == ("token", True)


def test_several_schemes_are_groups_with_names(untied: Path) -> None:
    _, found = written(untied, mixed)

    assert found["format"] == "mixed-precision"
    assert [(g["format"], g["targets"]) for g in found["config_groups"].values()] == [
        (
            "int-quantized",
            [
                r"re:model\.layers\.\d+(\.self_attn\.k_proj|\.self_attn\.q_proj"
                r"|\.self_attn\.v_proj|\.mlp\.gate_proj|\.mlp\.up_proj)$"
            ],
        ),
        ("pack-quantized", [r"re:model\.layers\.\d+\.self_attn\.o_proj$"]),
        ("int-quantized", [r"re:model\.layers\.(0|2)\.mlp\.down_proj$"]),
    ]
    assert found["ignore"] == ["model.layers.1.mlp.down_proj", "lm_head"]


def test_schemes_that_differ_only_in_method_are_one_group(untied: Path) -> None:
    first = scheme("W8A8")
    assert first.activations is not None
    other = first.model_copy(
        update={"activations": first.activations.model_copy(update={"observer": "MSE"})}
    )

    _, found = written(untied, lambda name: first if "mlp" in name else other)

    assert list(found["config_groups"]) == ["group_0"]


@pytest.mark.parametrize("recipe", [mixed, everywhere(scheme("W8A8"))], ids=["mixed", "one"])
def test_every_linear_and_every_fused_linear_finds_its_scheme(recipe: Recipe, untied: Path) -> None:
    plan, found = written(untied, recipe)

    for linear in linears_of(plan):
        ignored = any(matches(target, linear.name) for target in found["ignore"])
        assert ignored == (linear.scheme is None)
        if linear.scheme is not None:
            group = server_group(found, linear.name)
            assert group["weights"]["num_bits"] == linear.scheme.weights.bits
            is_dynamic = (group["input_activations"] or {}).get("dynamic")
            activations = linear.scheme.activations
            assert is_dynamic == (activations and activations.kind == "dynamic")
    for layer in range(3):
        for fused, parts in FUSED.items():
            module = f"model.layers.{layer}.{'self_attn' if 'qkv' in fused else 'mlp'}"
            assert server_group(found, f"{module}.{fused}") == server_group(
                found, f"{module}.{parts[0]}"
            )


def server_group(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The group a server takes: by name, then by class, then by the parts of a fused linear."""
    groups = [(t, g) for g in config["config_groups"].values() for t in g["targets"]]
    by_name = [group for target, group in groups if matches(target, name)]
    by_class = [group for target, group in groups if target == "Linear"]
    parent, _, leaf = name.rpartition(".")
    parts = [f"{parent}.{part}" for part in FUSED.get(leaf, [])]
    by_part = [[g for t, g in groups if matches(t, part)] for part in parts]
    shared = [groups[0] for groups in by_part] if parts and all(by_part) else []
    found: dict[str, Any] = (by_name + by_class + shared)[0]
    return found


names = st.builds(
    lambda layer, leaf: f"model.layers.{layer}.{leaf}",
    st.integers(0, 12),
    st.sampled_from(["self_attn.q_proj", "mlp.up_proj", "mlp.experts.3.up_proj", "mlp.up_proj_x"]),
) | st.sampled_from(["lm_head", "model.proj"])


@given(st.lists(names, unique=True), st.data())
def test_patterns_match_exactly_their_names(everything: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(everything), unique=True)) if everything else []

    patterns = name_patterns(chosen, everything)

    reached = {name for name in everything if any(matches(p, name) for p in patterns)}
    assert reached == set(chosen)
    assert len(patterns) <= len(chosen)


def test_a_name_outside_the_plan_is_kept_as_it_is() -> None:
    assert name_patterns(["lm_head"], ["model.layers.0.mlp.up_proj"]) == ["lm_head"]


def test_config_keeps_the_keys_of_the_source_and_their_order(tied: Path) -> None:
    plan = make_plan(tied, everywhere(scheme("W8A8")), ("CompressedTensors",))
    source = json.loads((tied / "config.json").read_text())
    source["text_config"] = {"quantization_config": {"old": 1}, "kept": 2}
    source = {"quantization_config": {"old": 1}, **source}

    files = FORMATS["CompressedTensors"].metadata_files(plan, source)
    found = json.loads(files["config.json"])

    assert list(found) == [*list(source)[1:], "quantization_config"]
    assert found["text_config"] == {"kept": 2}
    assert found["quantization_config"]["quant_method"] == "compressed-tensors"
    assert found["tie_word_embeddings"] is True


def test_a_quantized_head_is_untied(untied: Path) -> None:
    plan = make_plan(untied, lambda name: scheme("W8A8Dynamic"), ("CompressedTensors",))
    config = json.loads((untied / "config.json").read_text()) | {"tie_word_embeddings": True}

    files = FORMATS["CompressedTensors"].metadata_files(plan, config)
    found = json.loads(files["config.json"])

    assert found["tie_word_embeddings"] is False
    assert found["quantization_config"]["ignore"] == []


def test_nothing_quantized_leaves_no_quantization_config(untied: Path) -> None:
    plan = make_plan(untied, lambda name: None, ("CompressedTensors",))

    assert "quantization_config" not in config_of(plan, untied)


def test_metadata_is_the_same_every_time(untied: Path) -> None:
    plan = make_plan(untied, mixed, ("CompressedTensors",))
    again = Plan.model_validate_json(plan.model_dump_json())

    found = FORMATS["CompressedTensors"]
    assert found.metadata_files(plan, {"a": 1}) == found.metadata_files(again, {"a": 1})

"""A manifest that does not fit model or data: every refusal names field, value and rule."""

from typing import Any

import pytest

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.planning import make_plan
from tiny_models import write_jsonl

GROUPED = {"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 64}}


def override(*targets: str, scheme: str = "W8A8Dynamic") -> list[dict[str, Any]]:
    return [{"targets": list(targets), "scheme": scheme}]


def evaluation(count: int, length: int, *, claim: str = "data") -> dict[str, Any]:
    source = {"pvc": {"claimName": claim, "path": "eval.jsonl"}}
    return {"evaluation": {"source": source, "windowCount": count, "windowLength": length}}


SHORT = {"pvc": {"claimName": "data", "path": "short.jsonl"}}

RECIPES: dict[str, tuple[dict[str, Any], str, object, str]] = {
    "override of no module": (
        {"recipe__overrides": override("model.layers.7.mlp.down_proj")},
        "spec.recipe.overrides[0].targets[0]",
        "model.layers.7.mlp.down_proj",
        "model.layers.1.mlp.down_proj",
    ),
    "second target of no module": (
        {"recipe__overrides": override("*.down_proj", "*.w2")},
        "spec.recipe.overrides[0].targets[1]",
        "*.w2",
        "must name at least one linear",
    ),
    "ignore of no module": (
        {"recipe__ignore": ["lm_head", "down_proj"]},
        "spec.recipe.ignore[1]",
        "down_proj",
        "*.down_proj",
    ),
    "ignore of a norm": (
        {"recipe__ignore": ["model.layers.0.input_layernorm"]},
        "spec.recipe.ignore[0]",
        "model.layers.0.input_layernorm",
        "must name at least one linear",
    ),
    "regular expression of no module": (
        {"recipe__ignore": ["re:.*experts.*"]},
        "spec.recipe.ignore[0]",
        "re:.*experts.*",
        "must name at least one linear",
    ),
    "embedding to be quantized": (
        {"recipe__overrides": override("model.embed_tokens", scheme="W8A16")},
        "spec.recipe.overrides[0].targets[0]",
        "model.embed_tokens",
        "must not name the embedding",
    ),
    "embedding by glob": (
        {"recipe__overrides": override("*embed*", scheme="W8A16")},
        "spec.recipe.overrides[0].targets[0]",
        "*embed*",
        "must not name the embedding",
    ),
    "group size that does not divide": (
        {"recipe": GROUPED},
        "spec.recipe.weights.groupSize",
        64,
        "must divide the 160 input features of model.layers.0.mlp.down_proj",
    ),
    "default group size of an override": (
        {"recipe__overrides": override("*.o_proj", scheme="W4A16")},
        "spec.recipe.weights.groupSize",
        128,
        "must divide the 64 input features of model.layers.0.self_attn.o_proj",
    ),
    "everything ignored": (
        {"recipe__ignore": ["*"]},
        "spec.recipe",
        "scheme W8A8",
        "must leave at least one linear to quantize",
    ),
    "everything overridden to float": (
        {"recipe__overrides": override("*", scheme="None")},
        "spec.recipe",
        "scheme W8A8",
        "must leave at least one linear to quantize",
    ),
    "format without the scheme": (
        {
            "recipe": {"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 32}},
            "output__formats": ["CompressedTensors", "Ascend"],
        },
        "spec.output.formats[1]",
        "Ascend",
        "there is CompressedTensors with W8A8, W8A8Dynamic, W8A16, W4A16; "
        "Ascend with W8A8, W8A8Dynamic, W8A16",
    ),
    "format without groups": (
        {
            "recipe": {"scheme": "W8A16", "weights": {"method": "RTN", "groupSize": 32}},
            "output__formats": ["Ascend"],
        },
        "spec.output.formats[0]",
        "Ascend",
        "W8A16 with symmetric weights, group size 32",
    ),
    "schemes that do not go together": (
        {
            "recipe__scheme": "W8A16",
            "recipe__weights": {"method": "RTN", "symmetric": False},
            "recipe__overrides": override("*.o_proj"),
        },
        "spec.output.formats[0]",
        "CompressedTensors",
        "must be able to hold all schemes of the recipe together",
    ),
    "format without asymmetric weights": (
        {
            "recipe__scheme": "W8A16",
            "recipe__weights": {"method": "RTN", "symmetric": False},
            "output__formats": ["Ascend"],
        },
        "spec.output.formats[0]",
        "Ascend",
        "asymmetric weights",
    ),
    "asymmetric weights beside another scheme": (
        {
            "recipe": {
                "scheme": "W4A16",
                "weights": {"method": "RTN", "groupSize": 32, "symmetric": False},
                "overrides": [{"targets": ["*.down_proj"], "scheme": "W8A16"}],
            },
        },
        "spec.output.formats[0]",
        "CompressedTensors",
        "asymmetric weights only where all linears have the same scheme",
    ),
    "samples longer than the model's positions": (
        {"calibration__sequenceLength": 2048},
        "spec.calibration.sequenceLength",
        2048,
        "must be at most the model's 1024 positions",
    ),
    "windows longer than the model's positions": (
        evaluation(1, 1025),
        "spec.evaluation.windowLength",
        1025,
        "must be at most the model's 1024 positions",
    ),
    "too little evaluation text": (
        evaluation(99, 1000),
        "spec.evaluation.source",
        None,
        "99 windows of 1000",
    ),
    "no text long enough": (
        {"calibration__minTokens": 32, "calibration__source": SHORT},
        "spec.calibration.source",
        None,
        "must have 32 tokens",
    ),
    "text field that is not there": (
        {"calibration__textField": "messages"},
        None,
        None,
        "must have the field 'messages'",
    ),
    "missing text file": (
        {"calibration__source": {"pvc": {"claimName": "data", "path": "nowhere.jsonl"}}},
        "spec.calibration.source",
        None,
        "must be an existing file",
    ),
    "model claim not mapped": (
        {"model__source": {"pvc": {"claimName": "elsewhere", "path": "x"}}},
        "spec.model.source.pvc.claimName",
        "elsewhere",
        "pass --volume elsewhere=DIR",
    ),
    "evaluation claim not mapped": (
        evaluation(1, 8, claim="held-out"),
        "spec.evaluation.source.pvc.claimName",
        "held-out",
        "pass --volume held-out=DIR",
    ),
    "missing model folder": (
        {"model__source": {"pvc": {"claimName": "models", "path": "nowhere"}}},
        "spec.model.source",
        None,
        "must be an existing folder",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RECIPES.values(), ids=list(RECIPES))
def test_a_manifest_that_does_not_fit_is_refused(bench: Any, case: Any) -> None:
    changes, field, value, rule = case
    write_jsonl(bench.root / "data" / "short.jsonl", ["a", "of the"])
    with pytest.raises(InvalidInput) as refused:
        make_plan(bench.job(**changes), volumes=bench.volumes)
    assert field is None or refused.value.field == field
    assert value is None or refused.value.value == value
    assert rule in refused.value.rule
    assert "\n" not in str(refused.value)

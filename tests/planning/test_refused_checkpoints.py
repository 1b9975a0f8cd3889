"""A checkpoint that does not fit its architecture: every refusal names field, value and rule."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.planning import make_plan
from tiny_models import make_tiny_model


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def edit_tensors(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def remove(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


UP, NORM = "model.layers.0.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"

CHECKPOINTS: dict[str, tuple[Callable[[Path], None], str | None, object, str]] = {
    "unknown architecture": (
        edit_config(architectures=["GPT2LMHeadModel"]),
        "spec.model.source",
        "GPT2LMHeadModel",
        "LlamaForCausalLM",
    ),
    "already quantized": (
        edit_config(quantization_config={"quant_method": "gptq"}),
        "spec.model.source: config.json: quantization_config",
        None,
        "must not be quantized already",
    ),
    "one layer less than config.json": (
        edit_config(num_hidden_layers=3),
        "spec.model.source",
        "model.layers.2.input_layernorm.weight",
        "must hold this tensor, which the architecture needs (9 in all)",
    ),
    "one layer more than config.json": (
        edit_config(num_hidden_layers=1),
        "spec.model.source",
        "model.layers.1.input_layernorm.weight",
        "must hold no tensor that the architecture does not know (9 in all)",
    ),
    "unknown tensor": (
        edit_tensors(lambda t: t.update({"model.layers.0.mlp.gate.weight": torch.ones(4, 4)})),
        "spec.model.source",
        "model.layers.0.mlp.gate.weight",
        "must hold no tensor that the architecture does not know",
    ),
    "bias that the architecture has not": (
        edit_tensors(lambda t: t.update({"model.layers.0.mlp.up_proj.bias": torch.ones(160)})),
        "spec.model.source",
        "model.layers.0.mlp.up_proj.bias",
        "must hold no tensor",
    ),
    "missing tensor": (
        edit_tensors(lambda t: t.pop(UP)),
        "spec.model.source",
        UP,
        "must hold this tensor",
    ),
    "missing head": (
        edit_tensors(lambda t: t.pop("lm_head.weight")),
        "spec.model.source",
        "lm_head.weight",
        "must hold this tensor",
    ),
    "missing embedding": (
        edit_tensors(lambda t: t.pop("model.embed_tokens.weight")),
        "spec.model.source",
        "model.embed_tokens.weight",
        "must hold this tensor",
    ),
    "other shape": (
        edit_config(intermediate_size=192),
        "spec.model.source: model.layers.0.mlp.down_proj.weight",
        [64, 160],
        "must have the shape [64, 192]",
    ),
    "other dtype": (
        edit_tensors(lambda t: t.update({NORM: t[NORM].to(torch.float16)})),
        f"spec.model.source: {NORM}",
        "F16",
        "must have dtype F32 like the embedding",
    ),
    "dtype that is no model's": (
        edit_tensors(lambda t: t.update({k: v.to(torch.float64) for k, v in t.items()})),
        "spec.model.source: model.embed_tokens.weight",
        "F64",
        "must have one of the dtypes F32, F16, BF16",
    ),
    "vocabulary of another size": (
        edit_config(vocab_size=500),
        "spec.model.source: lm_head.weight",
        [512, 64],
        "must have the shape [500, 64]",
    ),
    "no tokenizer": (
        remove("tokenizer.json", "tokenizer_config.json"),
        "spec.model.source",
        None,
        "must hold a tokenizer",
    ),
    "no config": (remove("config.json"), "spec.model.source", None, "must hold a config.json"),
    "no weights": (remove("model.safetensors"), "spec.model.source", None, "model.safetensors"),
    "truncated weights": (
        lambda folder: (
            (folder / "model.safetensors").write_bytes(
                (folder / "model.safetensors").read_bytes()[:-100]
            )
            and None
        ),
        "spec.model.source: model.safetensors",
        None,
        "truncated",
    ),
}


@pytest.mark.parametrize("case", CHECKPOINTS.values(), ids=list(CHECKPOINTS))
def test_a_checkpoint_that_does_not_fit_is_refused(bench: Any, case: Any) -> None:
    change, field, value, rule = case
    folder = bench.volumes["models"] / "own"
    shutil.copytree(bench.volumes["models"] / "llama", folder)
    change(folder)
    source = {"pvc": {"claimName": "models", "path": "own"}}
    with pytest.raises(InvalidInput) as refused:
        make_plan(bench.job(model__source=source), volumes=bench.volumes)
    assert field is None or refused.value.field == field
    assert value is None or refused.value.value == value
    assert rule in refused.value.rule
    assert "\n" not in str(refused.value)


ORDER: list[dict[str, Any]] = [
    {"calibration__source": {"pvc": {"claimName": "data", "path": "nowhere.jsonl"}}},
    {"output__formats": ["Ascend"]},
    {"recipe__ignore": ["nothing"]},
    {"model__source": {"pvc": {"claimName": "models", "path": "own"}}},
    {"output__pvc": {"claimName": "nobody", "path": "x"}},
]
FIELDS = ["spec.calibration", "spec.output.formats", "spec.recipe", "spec.model", "spec.output.pvc"]


def test_the_first_thing_wrong_is_told_first(bench: Any) -> None:
    """Manifest, then checkpoint, targets, formats, data."""
    folder = make_tiny_model(bench.volumes["models"] / "own", "llama")
    edit_tensors(lambda t: t.pop(UP))(folder)
    wrong: dict[str, Any] = {
        "recipe": {"scheme": "W4A16", "weights": {"method": "GPTQ", "groupSize": 32}}
    }
    for change, field in zip(ORDER, FIELDS, strict=True):
        wrong |= change
        with pytest.raises(InvalidInput) as refused:
            make_plan(bench.job(**wrong), volumes=bench.volumes)
        assert refused.value.field.startswith(field)

"""The engine's perplexity is what a few lines of plain transformers compute."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from quantfleet_api.spec import QuantizationJob
from quantfleet_worker.launch import run_job

pytestmark = [pytest.mark.demo, pytest.mark.distributed]

COUNT, LENGTH = 3, 64


def job(model: str) -> QuantizationJob:
    return QuantizationJob.model_validate(
        {
            "apiVersion": "quantfleet.io/v1alpha1",
            "kind": "QuantizationJob",
            "metadata": {"name": "perplexity"},
            "spec": {
                "model": {"source": {"pvc": {"claimName": "models", "path": model}}},
                "recipe": {"scheme": "W8A8Dynamic", "weights": {"method": "RTN"}},
                "output": {
                    "pvc": {"claimName": "out", "path": "result"},
                    "formats": ["CompressedTensors"],
                },
                "evaluation": {
                    "source": {"pvc": {"claimName": "data", "path": "eval.jsonl"}},
                    "windowCount": COUNT,
                    "windowLength": LENGTH,
                },
            },
        }
    )


def test_perplexities_equal_those_of_plain_transformers(demo, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    volumes = {"models": demo.model.parent, "data": demo.evaluation.parent, "out": tmp_path}
    outcome = run_job(job(demo.cut_model.name), volumes=volumes, workers=2)
    assert outcome.report is not None, outcome.cause
    found = outcome.report["evaluation"]

    windows = evaluation_windows(demo.cut_model, demo.evaluation)
    model = AutoModelForCausalLM.from_pretrained(demo.cut_model, dtype=torch.float32)
    as_float = losses(model, windows)
    quantize_in_place(model)
    as_quantized = losses(model, windows)

    measured = torch.tensor(found["windowLosses"])
    torch.testing.assert_close(measured[:, 0], as_float, rtol=0, atol=1e-5)
    # a rounding error of float32 may move a code by one
    torch.testing.assert_close(measured[:, 1], as_quantized, rtol=0, atol=1e-3)
    assert (as_float - as_quantized).abs().min() > 5e-3  # not a model that was never quantized
    assert math.log(found["floatPerplexity"]) == pytest.approx(float(as_float.mean()), abs=1e-5)
    assert found["ratio"] == found["quantizedPerplexity"] / found["floatPerplexity"]


def evaluation_windows(model: Path, texts: Path) -> Tensor:
    """All texts as one stream, a blank line between two; window i starts at i / COUNT of it."""
    tokenizer = AutoTokenizer.from_pretrained(model)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    stream: list[int] = []
    for line in texts.read_text().splitlines():
        stream += ids("\n\n") if stream else []
        stream += ids(json.loads(line)["text"])
    starts = [i * len(stream) // COUNT for i in range(COUNT)]
    return torch.tensor([stream[start : start + LENGTH] for start in starts])


@torch.no_grad()
def losses(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean loss of each window's tokens but the first."""
    logits: Any = model(windows).logits[:, :-1]
    both = logits.flatten(0, 1), windows[:, 1:].flatten()
    return nn.functional.cross_entropy(*both, reduction="none").reshape(COUNT, -1).mean(1)


@torch.no_grad()
def quantize_in_place(model: nn.Module) -> None:
    """Int8 weights by row and int8 inputs by token; lm_head stays."""

    def rounded(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127.5
        return (x / scale).clamp(-128, 127).round() * scale

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            module.weight.copy_(rounded(module.weight))
            module.register_forward_pre_hook(lambda _, arguments: (rounded(arguments[0]),))

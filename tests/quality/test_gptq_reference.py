"""The engine's GPTQ against the paper's recursion, written on plain transformers in float64.

Codes part ways after the first rounding that falls the other way, so what is compared is what the
report gives: the relative output error of every linear of two real layers, Quantized propagation.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from quantfleet_api.spec import QuantizationJob
from quantfleet_worker.launch import run_job

pytestmark = [pytest.mark.soak, pytest.mark.demo, pytest.mark.distributed]

COUNT, LENGTH, GROUP = 32, 128, 64
SITES = {
    "self_attn.q_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}


def job(model: str, *, ordered: bool) -> QuantizationJob:
    weights = {"method": "GPTQ", "groupSize": GROUP, "gptq": {"activationOrder": ordered}}
    return QuantizationJob.model_validate(
        {
            "apiVersion": "quantfleet.io/v1alpha1",
            "kind": "QuantizationJob",
            "metadata": {"name": "gptq"},
            "spec": {
                "model": {"source": {"pvc": {"claimName": "models", "path": model}}},
                "calibration": {
                    "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
                    "sampleCount": COUNT,
                    "sequenceLength": LENGTH,
                },
                "recipe": {"scheme": "W4A16", "weights": weights, "propagation": "Quantized"},
                "output": {
                    "pvc": {"claimName": "out", "path": "result"},
                    "formats": ["CompressedTensors"],
                },
            },
        }
    )


@pytest.mark.parametrize("ordered", [False, True])
def test_output_errors_are_those_of_the_paper(demo, tmp_path: Path, ordered: bool) -> None:
    torch.set_num_threads(1)
    volumes = {"models": demo.model.parent, "data": demo.calibration.parent, "out": tmp_path}
    outcome = run_job(job(demo.cut_model.name, ordered=ordered), volumes=volumes, workers=2)
    assert outcome.report is not None, outcome.cause
    found = {
        linear["name"]: linear["relative_error"]
        for layer in outcome.report["layers"]
        for linear in layer["linears"]
    }
    expected = dict(reference(demo, ordered=ordered))
    assert len(expected) == 14
    assert found == pytest.approx(expected, rel=0.05)


@torch.no_grad()
def reference(demo: Any, *, ordered: bool) -> Iterator[tuple[str, float]]:
    """Relative output error by linear name."""
    model = AutoModelForCausalLM.from_pretrained(demo.cut_model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(demo.cut_model)
    lines = demo.calibration.read_text().splitlines()[:COUNT]
    ids = [tokenizer(json.loads(line)["text"])["input_ids"][:LENGTH] for line in lines]
    ids_BL = torch.tensor(ids)
    for index, layer in enumerate(model.model.layers):
        moments = second_moments(model, layer, ids_BL)
        for site, names in SITES.items():
            for name in names:
                linear = layer.get_submodule(name)
                W, H = linear.weight.double(), moments[site]
                Q = solve(W, H, ordered=ordered)
                E = W - Q
                yield (
                    f"model.layers.{index}.{name}",
                    float((((E @ H) * E).sum() / ((W @ H) * W).sum()).sqrt()),
                )
                linear.weight.copy_(Q)


def second_moments(model: nn.Module, layer: nn.Module, ids_BL: Tensor) -> dict[str, Tensor]:
    seen = {}

    def watch(site: str) -> Any:
        def hook(_module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            rows = arguments[0].flatten(0, 1).double()
            seen[site] = rows.T @ rows

        return hook

    hooks = [layer.get_submodule(s).register_forward_pre_hook(watch(s)) for s in SITES]
    model.model(ids_BL)
    for hook in hooks:
        hook.remove()
    return seen


def scales(W: Tensor) -> Tensor:
    """Symmetric 4-bit scales [O, groups], rounded to the float32 that files keep."""
    grouped = W.reshape(len(W), -1, GROUP)
    return grouped.abs().amax(2).div(7.5).float().double()


def solve(W: Tensor, H: Tensor, *, ordered: bool) -> Tensor:
    """Frantar et al. 2022, algorithm 1, one column at a time."""
    scales_OG = scales(W)
    columns = W.shape[1]
    order = H.diagonal().argsort(descending=True) if ordered else torch.arange(columns)
    W, H = W[:, order].clone(), H[order][:, order].clone()
    H.diagonal().add_(0.01 * H.diagonal().mean())
    U = torch.linalg.cholesky(torch.linalg.inv(H), upper=True)
    Q = torch.zeros_like(W)
    for i in range(columns):
        group = int(order[i]) // GROUP
        if not ordered and i % GROUP == 0:  # the paper takes scales on the way
            scales_OG[:, group] = scales(W[:, i : i + GROUP])[:, 0]
        scale = scales_OG[:, group]
        Q[:, order[i]] = (W[:, i] / scale).clamp(-8, 7).round() * scale
        error = (W[:, i] - Q[:, order[i]]) / U[i, i]
        W[:, i:] -= torch.outer(error, U[i, i:])
    return Q

"""What is not as asked for is named (law L11); nothing below a gate is published (law L8)."""

import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_runs import Place, folder_digests, make_manifest
from quantfleet_api.errors import ExitCode
from quantfleet_worker import launch
from tiny_models import make_tiny_model

pytestmark = pytest.mark.distributed

MODEL = "llama-float32-untied"
STATIC = {"scheme": "W8A8"}
GPTQ = {"method": "GPTQ", "groupSize": 32}
LAST = "model.layers.1"

Change = Callable[[dict[str, torch.Tensor]], None]


def put_model(place: Place, change: Change) -> str:
    """A checkpoint of the place with some weights changed; its name."""
    folder = make_tiny_model(place.root / "models" / "changed")
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return "changed"


def overflow(tensors: dict[str, torch.Tensor]) -> None:
    """Channel 0 of the last down_proj's input is gate x up, which overflows for some tokens."""
    for linear in ("gate_proj", "up_proj"):
        row = tensors[f"{LAST}.mlp.{linear}.weight"][0]
        row.zero_()
        row[0] = 1e25


def silence(tensors: dict[str, torch.Tensor]) -> None:
    """Channels 3 and 5 of the last q/k/v input are always 0."""
    tensors[f"{LAST}.input_layernorm.weight"][[3, 5]] = 0.0


def left(place: Place) -> list[str]:
    """What lies in the claim of outputs."""
    return sorted(path.name for path in (place.root / "out").iterdir())


@pytest.mark.parametrize("ranks", [1, 3])
def test_values_that_are_not_finite_are_named_and_counted(ranks: int, place: Place) -> None:
    report = place.publish(make_manifest(put_model(place, overflow), STATIC), ranks=ranks).report

    assert report is not None
    warning, *beyond = report["warnings"]
    assert f"{LAST}.mlp.down" in warning
    linears = {x["name"]: x for layer in report["layers"] for x in layer["linears"]}
    unknown = [name for name, linear in linears.items() if linear["relative_error"] is None]
    assert unknown == [f"{LAST}.mlp.gate_proj", f"{LAST}.mlp.up_proj"]
    assert beyond == [f"{x}: its error is beyond float32 and not reported" for x in unknown]
    sites = {site["name"]: site for layer in report["layers"] for site in layer["sites"]}
    (name,) = (name for name, site in sites.items() if site["nonfinite"])
    assert warning.startswith(f"{name}: {sites[name]['nonfinite']} values that are not finite")
    assert 0 < sites[name]["nonfinite"] < sites[name]["rows"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_warning_under_fail_leaves_the_result_rejected(ranks: int, place: Place) -> None:
    recipe = {**STATIC, "warnings": "Fail"}

    outcome = place.run(make_manifest(put_model(place, overflow), recipe), ranks=ranks)

    assert outcome.exit_code == ExitCode.GATE_NOT_MET
    assert "not finite" in outcome.cause
    assert left(place) == ["result.rejected", "result.rejected.report.json",
                           "result.rejected.report.md"]  # fmt: skip


def test_no_warning_under_fail_is_published(place: Place) -> None:
    place.publish(make_manifest(MODEL, {**STATIC, "warnings": "Fail"}))


def test_missing_samples_under_fail_are_not_published(place: Place) -> None:
    recipe = {**STATIC, "warnings": "Fail"}

    outcome = place.run(make_manifest(MODEL, recipe, sampleCount=40), ranks=2)

    assert outcome.exit_code == ExitCode.GATE_NOT_MET
    assert "40 samples asked for, 12 used" in outcome.cause
    assert left(place) == [], "planning knows: no work is done first"


@pytest.mark.parametrize("ranks", [1, 3])
def test_gptq_names_columns_that_no_data_reached(ranks: int, place: Place) -> None:
    manifest = make_manifest(put_model(place, silence), {"scheme": "W4A16", "weights": GPTQ})

    report = place.publish(manifest, ranks=ranks).report

    assert report is not None
    named = {warning.partition(":")[0] for warning in report["warnings"]}
    assert named == {f"{LAST}.self_attn.{x}_proj" for x in "qkv"}
    assert all("2 columns without calibration data" in text for text in report["warnings"])


def test_gptq_names_a_dampening_that_it_raised(place: Place) -> None:
    """One short sample gives a second moment of low rank, which hardly any dampening mends."""
    weights = {**GPTQ, "gptq": {"dampening": "0.00000000001"}}
    manifest = make_manifest(MODEL, {"scheme": "W4A16", "weights": weights}, sampleCount=1)

    report = place.publish(manifest, ranks=2).report

    assert report is not None
    assert any(": raised to " in warning for warning in report["warnings"])


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_missed_gate_leaves_the_result_rejected(ranks: int, place: Place) -> None:
    gate = {"windowCount": 4, "windowLength": 16, "maxPerplexityRatio": "0.01"}

    outcome = place.run(make_manifest(MODEL, STATIC, evaluation=gate), ranks=ranks)

    assert outcome.exit_code == ExitCode.GATE_NOT_MET
    assert "maxPerplexityRatio is 0.01" in outcome.cause
    assert left(place) == ["result.rejected", "result.rejected.report.json",
                           "result.rejected.report.md"]  # fmt: skip
    report = json.loads((place.root / "out" / "result.rejected.report.json").read_text())
    assert report["gateMissed"] is not None
    assert report["evaluation"]["ratio"] > 0.01
    # what was rejected is whole, and a gate that is met publishes the very same files
    rejected = folder_digests(place.output("result.rejected"))
    gate["maxPerplexityRatio"] = "1000"
    place.publish(make_manifest(MODEL, STATIC, evaluation=gate), ranks=2)
    assert folder_digests(place.output()) == rejected


def test_a_rejected_result_is_replaced_by_the_next(place: Place) -> None:
    gate = {"windowCount": 4, "windowLength": 16, "maxPerplexityRatio": "0.01"}
    place.run(make_manifest(MODEL, STATIC, evaluation=gate))
    before = folder_digests(place.output("result.rejected"))

    outcome = place.run(make_manifest(MODEL, {"scheme": "W8A8Dynamic"}, evaluation=gate))

    assert outcome.exit_code == ExitCode.GATE_NOT_MET
    assert folder_digests(place.output("result.rejected")) != before
    assert left(place) == ["result.rejected", "result.rejected.report.json",
                           "result.rejected.report.md"]  # fmt: skip


def with_policy(manifest: dict[str, Any], policy: str) -> dict[str, Any]:
    manifest["spec"]["output"]["overwritePolicy"] = policy
    return manifest


def test_replace_publishes_over_another_output(place: Place) -> None:
    place.publish(make_manifest(MODEL, STATIC))
    place.publish(make_manifest(MODEL, {"scheme": "W8A16"}), output="other")

    place.publish(with_policy(make_manifest(MODEL, {"scheme": "W8A16"}), "Replace"), ranks=2)

    assert folder_digests(place.output()) == folder_digests(place.output("other"))
    assert not [name for name in left(place) if ".old" in name or ".work" in name]


def test_fail_keeps_another_output_as_it_is(place: Place) -> None:
    place.publish(make_manifest(MODEL, STATIC))
    before = {path: path.read_bytes() for path in (place.root / "out").rglob("*") if path.is_file()}

    outcome = place.run(make_manifest(MODEL, {"scheme": "W8A16"}))

    assert outcome.exit_code == ExitCode.INVALID_INPUT
    assert "spec.output" in outcome.cause
    after = {path: path.read_bytes() for path in (place.root / "out").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("policy", ["Fail", "Replace"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_finished_job_returns_at_once(ranks: int, policy: str, place: Place) -> None:
    manifest = with_policy(make_manifest(MODEL, STATIC), policy)
    first = place.publish(manifest, ranks=2)
    stamps = {path: path.stat().st_mtime_ns for path in (place.root / "out").rglob("*")}

    with mock.patch.object(launch, "Gang", side_effect=AssertionError("no rank may start")):
        again = place.publish(manifest, ranks=ranks)

    assert "nothing was done" in again.hint
    assert again.report == first.report
    assert {path: path.stat().st_mtime_ns for path in (place.root / "out").rglob("*")} == stamps


def test_a_damaged_output_of_the_same_plan_is_not_success(place: Place) -> None:
    manifest = make_manifest(MODEL, STATIC)
    place.publish(manifest)
    path = next(place.output().glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    outcome = place.run(manifest)

    assert outcome.exit_code == ExitCode.INVALID_INPUT
    assert path.name in outcome.cause


def test_a_model_whose_activations_are_never_finite_is_refused_by_name(place: Place) -> None:
    """With Quantized propagation the input of down_proj would be clipped, and so be finite."""

    def break_down(tensors: dict[str, torch.Tensor]) -> None:
        for linear in ("gate_proj", "up_proj"):
            rows = tensors[f"model.layers.0.mlp.{linear}.weight"][:2]
            rows.zero_()
            rows[:, 0] = torch.tensor([1e25, -1e25])

    recipe = {**STATIC, "propagation": "Float"}
    outcome = place.run(make_manifest(put_model(place, break_down), recipe), ranks=2)

    assert outcome.exit_code == ExitCode.INVALID_INPUT
    assert "finite activations" in outcome.cause
    assert not place.output().exists()


def test_a_model_that_predicts_nothing_misses_the_gate(place: Place) -> None:
    """Its perplexity is beyond any float."""

    def shout(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"].mul_(1e6)

    gate = {"windowCount": 2, "windowLength": 16, "maxPerplexityRatio": "1000"}

    outcome = place.run(make_manifest(put_model(place, shout), STATIC, evaluation=gate), ranks=2)

    assert outcome.exit_code == ExitCode.GATE_NOT_MET
    assert "maxPerplexityRatio" in outcome.cause

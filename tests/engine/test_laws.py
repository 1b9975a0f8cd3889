"""Laws of the engine on whole runs: samples, passes, exchanges, files, tensors."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from decoded_model import published_tensors, quantized_linears
from engine_probes import seen, small_chunks, watched_ranks
from engine_runs import BOTH, Place, folder_digests, make_manifest
from quantfleet_api.loading import parse_job
from quantfleet_api.plan import FormatName, Plan
from quantfleet_worker.planning import make_plan
from tiny_models import tiny_texts, write_jsonl

pytestmark = pytest.mark.distributed

MODEL = "llama-float32-untied"
SMOOTH = {"transforms": [{"smoothQuant": {}}]}
STATIC = {"scheme": "W8A8"}
DATALESS = {"scheme": "W8A8Dynamic"}
GPTQ = {"scheme": "W4A16", "weights": {"method": "GPTQ", "groupSize": 32}}


def plan_of(place: Place, manifest: dict[str, Any]) -> Plan:
    return make_plan(parse_job(manifest), volumes=place.volumes).plan


# law L2


def test_every_sample_and_token_is_counted(place: Place) -> None:
    """12 texts; the one of a single word is too short, the one of 60 words is cut."""
    manifest = make_manifest(MODEL, STATIC, sampleCount=11, minTokens=4, batchSize=2)

    report = place.publish(manifest, ranks=3).report

    assert report is not None
    samples, plan = report["samples"], plan_of(place, manifest)
    assert samples["requested"] == samples["used"] == 11
    assert samples["available"] == 12
    assert samples["dropped_short"] == 1
    assert samples["truncated"] >= 1
    lengths = [length for batch in plan.micro_batches for length in batch.lengths]
    assert samples["tokens_used"] == sum(lengths)
    assert max(lengths) == 48
    rows = {site["rows"] for layer in report["layers"] for site in layer["sites"]}
    assert rows == {sum(lengths)}, "each site saw each token once, and no pad"
    assert sum(rank["microBatches"] for rank in report["ranks"]) == len(plan.micro_batches)


def test_missing_samples_are_a_warning_not_filled_up(place: Place) -> None:
    report = place.publish(make_manifest(MODEL, STATIC, sampleCount=40), ranks=5).report

    assert report is not None
    assert report["samples"]["used"] == 12
    (warning,) = report["warnings"]
    assert "40 samples asked for, 12 used" in warning


@pytest.mark.parametrize(
    ("ranks", "calibration"),
    [
        pytest.param(3, {"sampleCount": 1}, id="one sample"),
        pytest.param(2, {"sampleCount": 3, "batchSize": 50}, id="a batch larger than all"),
        pytest.param(2, {"sequenceLength": 1, "batchSize": 4}, id="samples of one token"),
        pytest.param(2, {"sampleCount": 5, "concatenate": True}, id="full windows"),
    ],
)
@pytest.mark.parametrize("recipe", [STATIC | SMOOTH, GPTQ], ids=["static", "gptq"])
def test_unusual_counts_work(
    recipe: dict[str, Any], ranks: int, calibration: dict[str, Any], place: Place
) -> None:
    manifest = make_manifest(MODEL, recipe, **calibration)
    place.publish(manifest, ranks=1, output="alone")

    place.publish(manifest, ranks=ranks, output="together")

    assert folder_digests(place.output("alone")) == folder_digests(place.output("together"))


# laws L3 and L4


@pytest.mark.parametrize(
    ("recipe", "passes"),
    [
        pytest.param({**STATIC, "propagation": "Quantized"}, [2, 1], id="Quantized"),
        pytest.param({**STATIC, "propagation": "Float"}, [1, 1], id="Float"),
        pytest.param({**STATIC, "propagation": "Quantized", "ignore": []}, [2, 2], id="head too"),
        pytest.param({**GPTQ, **SMOOTH, "propagation": "Quantized"}, [2, 1], id="GPTQ"),
        pytest.param({**DATALESS, "propagation": "Quantized"}, [0, 0], id="no data"),
        pytest.param(
            {
                **DATALESS,
                "propagation": "Quantized",
                "overrides": [{"targets": ["*.layers.0.mlp.*"], "scheme": "W8A8"}],
            },
            [1, 0],
            id="data for the first layer only",
        ),
        pytest.param(
            {
                **DATALESS,
                "propagation": "Float",
                "overrides": [{"targets": ["*.layers.1.mlp.*"], "scheme": "W8A8"}],
            },
            [1, 1],
            id="data for the last layer only",
        ),
    ],
)
def test_each_layer_sees_each_micro_batch_as_often_as_needed(
    recipe: dict[str, Any], passes: list[int], place: Place, tmp_path: Path
) -> None:
    manifest = make_manifest(MODEL, recipe, batchSize=2)
    num_batches = len(plan_of(place, manifest).micro_batches)
    assert num_batches == (5 if any(passes) else 0)

    with watched_ranks(tmp_path / "seen"):
        report = place.publish(manifest, ranks=2).report

    ranks = seen(tmp_path / "seen")
    assert len(ranks) == 2
    for layer, times in enumerate(passes, start=1):
        inputs = Counter(digest for rank in ranks for digest in rank.inputs.get(layer, []))
        assert len(inputs) == (num_batches if times else 0)
        assert set(inputs.values()) <= {times}, "both passes of a micro-batch start alike"
    assert report is not None
    assert all(rank["mostPhasesOfALayer"] <= 3 for rank in report["ranks"])


@pytest.mark.parametrize("recipe", [STATIC | SMOOTH, GPTQ | SMOOTH, DATALESS], ids=str)
def test_a_layer_has_at_most_three_exchange_phases(recipe: dict[str, Any], place: Place) -> None:
    report = place.publish(make_manifest(MODEL, recipe), ranks=3).report

    assert report is not None
    most = {rank["mostPhasesOfALayer"] for rank in report["ranks"]}
    assert most == ({1} if recipe is DATALESS else {3})


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_no_transfer_is_larger_than_the_plan_allows(
    ranks: int, place: Place, tmp_path: Path
) -> None:
    recipe = {**STATIC, **SMOOTH, "activations": {"observer": "MSE"}}
    manifest = make_manifest(MODEL, recipe)
    place.publish(manifest, ranks=1, output="whole")

    with watched_ranks(tmp_path / "seen"), small_chunks(1 << 14):
        place.publish(manifest, ranks=ranks, output="chunked")

    found = seen(tmp_path / "seen")
    assert len(found) == ranks
    assert len({len(rank.transfers) for rank in found}) == 1, "all make the same transfers"
    assert all(size <= 1 << 14 for rank in found for size in rank.transfers)
    assert max(size for rank in found for size in rank.transfers) > 1 << 13
    whole, chunked = (published_tensors(place.output(name)) for name in ("whole", "chunked"))
    assert whole.keys() == chunked.keys()
    assert all(whole[name].equal(chunked[name]) for name in whole)


# laws L7 and L12


@pytest.mark.parametrize("formats", [BOTH, BOTH[1:], BOTH[:1]], ids="+".join)
@pytest.mark.parametrize("model", ["qwen2-bfloat16-tied", MODEL])
def test_files_are_those_of_the_plan(
    formats: tuple[FormatName, ...], model: str, place: Place
) -> None:
    manifest = make_manifest(model, {**STATIC, **SMOOTH}, formats=formats)
    place.publish(manifest, ranks=2)
    plan = plan_of(place, manifest)

    for name in formats:
        folder = place.output()
        if len(formats) > 1:
            folder /= {"CompressedTensors": "compressed-tensors", "Ascend": "ascend"}[name]
        planned = {file.name: file for layer in plan.layers for file in layer.files[name]}
        assert {path.name for path in folder.glob("*.safetensors")} == planned.keys()
        for file_name, file in planned.items():
            with safe_open(folder / file_name, framework="pt") as found:
                held = {
                    key: (found.get_slice(key).get_dtype(), tuple(found.get_slice(key).get_shape()))
                    for key in found.keys()
                }
            assert held == {meta.name: (meta.dtype, meta.shape) for meta in file.tensors}


@pytest.mark.parametrize("model", ["qwen2-bfloat16-tied", MODEL])
@pytest.mark.parametrize("head", [True, False], ids=["head quantized", "head float"])
def test_every_source_tensor_is_accounted_for(
    model: str, head: bool, place: Place, tiny_checkpoints: dict[str, Path]
) -> None:
    overrides = [{"targets": ["*.layers.0.mlp.down_proj"], "scheme": "None"}]
    ignore = [] if head else ["lm_head"]
    recipe = {**STATIC, **SMOOTH, "overrides": overrides, "ignore": ignore}
    manifest = make_manifest(model, recipe)
    place.publish(manifest, ranks=2)
    plan = plan_of(place, manifest)

    source = published_tensors(tiny_checkpoints[model])
    output = published_tensors(place.output())
    quantized = {
        f"{name}.{part}" for name in quantized_linears(plan) for part in ("weight", "bias")
    }
    transformed = {name for layer in plan.layers for name in layer.transformed}
    passed = {name for layer in plan.layers for name in layer.passed_through}
    derived = {name for layer in plan.layers for name in layer.derived}
    assert transformed
    assert passed
    for name in source:
        groups = [name in quantized, name in transformed, name in passed, name in plan.dropped]
        assert sum(groups) == 1, name
    for name, tensor in output.items():
        assert (name in source) != (name in derived), name
        if name in passed:
            assert tensor.dtype == source[name].dtype
            assert tensor.equal(source[name]), name
        if name in transformed:
            assert tensor.dtype == source[name].dtype
            assert not tensor.equal(source[name]), name
    assert derived <= output.keys()


def test_what_is_not_tensors_is_copied_byte_for_byte(
    place: Place, tiny_checkpoints: dict[str, Path]
) -> None:
    place.publish(make_manifest(MODEL, STATIC), ranks=2)
    source, output = tiny_checkpoints[MODEL], place.output()

    for name in ("LICENSE", "generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (output / name).read_bytes() == (source / name).read_bytes()
    config = json.loads((output / "config.json").read_text())
    del config["quantization_config"]
    assert config == json.loads((source / "config.json").read_text())


def test_other_texts_give_another_result(place: Place) -> None:
    """The laws above would hold of an engine that ignores its data."""
    write_jsonl(place.root / "data" / "other.jsonl", tiny_texts(12, words=30, seed=5))
    first, other = (make_manifest(MODEL, STATIC, data=f"{n}.jsonl") for n in ("calib", "other"))
    place.publish(first, output="first")
    place.publish(other, output="other")

    one, two = (published_tensors(place.output(name)) for name in ("first", "other"))
    changed = {name for name in one if not one[name].equal(two[name])}
    assert changed
    assert all(name.endswith(("input_scale", "input_zero_point")) for name in changed)

"""What a plan says about tiny models of each family."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from quantfleet_api.plan import LayerPlan, Plan, SitePlan
from quantfleet_worker import layer_plans

MSE = {"observer": "MSE"}
GPTQ = {"method": "GPTQ", "groupSize": 32}
SMOOTH = [{"smoothQuant": {"alpha": "0.75"}}]


def site(layer: LayerPlan, name: str) -> SitePlan:
    """The site of a decoder layer by local name."""
    return next(site for site in layer.sites if site.name == f"{layer.name}.{name}")


def output_names(layer: LayerPlan, name: str = "CompressedTensors") -> list[str]:
    return [tensor.name for file in layer.files[name] for tensor in file.tensors]


@pytest.mark.parametrize("model", ["llama", "llama-tied", "mistral", "qwen2", "qwen3"])
def test_layers_are_embedding_decoders_head(bench: Any, model: str) -> None:
    plan = bench.plan(model).plan
    assert [layer.index for layer in plan.layers] == [0, 1, 2, 3]
    assert [layer.kind for layer in plan.layers] == ["embedding", "decoder", "decoder", "head"]
    assert [layer.name for layer in plan.layers[:3]] == [
        "model.embed_tokens",
        "model.layers.0",
        "model.layers.1",
    ]
    assert plan.family == model.partition("-")[0]
    assert plan.tied_embeddings == (model in ("llama-tied", "qwen2"))
    assert plan.model_dtype == ("BF16" if model in ("llama-tied", "qwen3") else "F32")


def test_a_decoder_layer_in_full(bench: Any) -> None:
    layer = bench.plan("qwen2").plan.layers[1]
    assert [s.name.removeprefix("model.layers.0.") for s in layer.sites] == [
        "self_attn.qkv_input",
        "self_attn.o_input",
        "mlp.gate_up_input",
        "mlp.down_input",
    ]
    shapes = [
        (x.local, x.out_features, x.in_features, x.bias) for s in layer.sites for x in s.linears
    ]
    assert shapes == [
        ("self_attn.q_proj", 64, 64, True),
        ("self_attn.k_proj", 32, 64, True),
        ("self_attn.v_proj", 32, 64, True),
        ("self_attn.o_proj", 64, 64, False),
        ("mlp.gate_proj", 160, 64, False),
        ("mlp.up_proj", 160, 64, False),
        ("mlp.down_proj", 64, 160, False),
    ]  # fmt: skip
    assert layer.transformed == ()
    assert layer.passed_through == (
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
    )
    assert "model.layers.0.mlp.up_proj.weight_scale" in layer.derived
    assert "model.layers.0.mlp.up_proj.weight" not in layer.derived


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("ranges", "reservoir")),
        ({"recipe__activations": MSE}, ("ranges", "histogram", "reservoir")),
        ({"recipe__activations": MSE, "recipe__transforms": SMOOTH}, ("ranges", "reservoir")),
        ({"recipe__scheme": "W8A8Dynamic"}, ()),
        ({"recipe__scheme": "W8A8Dynamic", "recipe__transforms": SMOOTH}, ("ranges", "reservoir")),
        ({"recipe__scheme": "W4A16", "recipe__weights": GPTQ}, ("ranges", "second_moment")),
        ({"recipe__weights": {"method": "GPTQ"}}, ("ranges", "second_moment")),
    ],
    ids=["static", "mse", "smoothed-mse", "dynamic", "smoothed", "gptq", "static-gptq"],
)  # fmt: skip
def test_a_site_collects_what_something_needs(
    bench: Any, changes: dict[str, Any], expected: tuple[str, ...]
) -> None:
    plan = bench.plan("qwen3", **changes).plan
    found = {s.statistics for layer in plan.layers if layer.kind == "decoder" for s in layer.sites}
    assert found == {expected}


def test_float_sites_collect_nothing(bench: Any) -> None:
    plan = bench.plan(recipe__ignore=["lm_head", "*.layers.0.*"], recipe__transforms=SMOOTH).plan
    assert [(s.statistics, s.smoothing) for s in plan.layers[1].sites] == [((), None)] * 4
    assert plan.layers[1].transformed == ()
    assert all(s.statistics and s.smoothing for s in plan.layers[2].sites)


def test_a_reservoir_that_decides_ranges_has_more_rows(bench: Any) -> None:
    mse = {"recipe__activations": MSE}
    assert bench.plan().plan.reservoir_rows == 256
    assert bench.plan(**mse).plan.reservoir_rows == 256
    assert bench.plan(**mse, recipe__transforms=SMOOTH).plan.reservoir_rows == 1024


def test_smoothing_names_where_its_inverse_goes(bench: Any) -> None:
    layer = bench.plan("qwen2", recipe__transforms=SMOOTH).plan.layers[1]
    found = [s.smoothing.model_dump() for s in layer.sites if s.smoothing]
    plain = {"alpha": "0.75", "heads_per_group": 1, "head_dim": 0}
    grouped = {"alpha": "0.75", "heads_per_group": 2, "head_dim": 16}
    assert found == [
        {**plain, "kind": "norm", "source": "input_layernorm"},
        {**grouped, "kind": "value_rows", "source": "self_attn.v_proj"},
        {**plain, "kind": "norm", "source": "post_attention_layernorm"},
        {**plain, "kind": "rows", "source": "mlp.up_proj"},
    ]  # fmt: skip
    assert layer.passed_through == ()
    assert layer.transformed == (
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
    )


def test_float_linears_that_smoothing_changes_are_transformed(bench: Any) -> None:
    ignore = ["lm_head", "re:.*(q|k|v|gate|up)_proj"]
    layer = bench.plan("qwen2", recipe__ignore=ignore, recipe__transforms=SMOOTH).plan.layers[1]
    assert layer.transformed == (
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.self_attn.v_proj.bias",
        "model.layers.0.self_attn.v_proj.weight",
    )
    assert "model.layers.0.self_attn.q_proj.weight" in layer.passed_through
    assert "model.layers.0.input_layernorm.weight" in layer.passed_through


def test_an_untied_float_head_passes_through(bench: Any) -> None:
    head = bench.plan().plan.layers[-1]
    assert [x.scheme for s in head.sites for x in s.linears] == [None]
    assert head.sites[0].name == "lm_head_input"
    assert head.sites[0].statistics == ()
    assert set(head.passed_through) == {"lm_head.weight", "model.norm.weight"}


def test_a_tied_float_head_exists_only_where_a_format_wants_a_copy(bench: Any) -> None:
    formats = ["CompressedTensors", "Ascend"]
    head = bench.plan("llama-tied", output__formats=formats).plan.layers[-1]
    assert head.sites == ()
    assert head.copies == {"lm_head.weight": "model.embed_tokens.weight"}
    assert head.derived == ("lm_head.weight",)
    assert {t.name for t in head.source} == {"model.norm.weight", "model.embed_tokens.weight"}
    assert output_names(head) == ["model.norm.weight"]
    assert output_names(head, "Ascend") == ["lm_head.weight", "model.norm.weight"]
    assert bench.plan("llama-tied").plan.layers[-1].copies == {}


def test_a_tied_head_that_is_quantized_is_derived_from_the_embedding(bench: Any) -> None:
    plan = bench.plan("llama-tied", recipe__ignore=[]).plan
    head = plan.layers[-1]
    (linear,) = head.sites[0].linears
    assert (linear.out_features, linear.in_features) == (512, 64)
    assert "model.embed_tokens.weight" in {t.name for t in head.source}
    assert head.passed_through == ("model.norm.weight",)
    assert "lm_head.weight" in head.derived
    assert plan.layers[0].passed_through == ("model.embed_tokens.weight",)


def test_files_are_numbered_over_all_layers(bench: Any) -> None:
    plan = bench.plan(output__formats=["CompressedTensors", "Ascend"]).plan
    names = [file.name for layer in plan.layers for file in layer.files["CompressedTensors"]]
    assert names == [f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)]
    ascend = [file.name for layer in plan.layers for file in layer.files["Ascend"]]
    assert ascend == [f"quant_model_weights-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)]


def test_large_layers_have_several_files(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bench.plan().plan
    monkeypatch.setattr(layer_plans, "MAX_FILE_BYTES", 20_000)
    split = bench.plan().plan
    assert len(split.layers[1].files["CompressedTensors"]) > 1
    for before, after in zip(whole.layers, split.layers, strict=True):
        assert sorted(output_names(before)) == sorted(output_names(after))
    names = [file.name for layer in split.layers for file in layer.files["CompressedTensors"]]
    assert len(set(names)) == len(names)
    assert names[-1].endswith(f"-of-{len(names):05d}.safetensors")


def test_a_recipe_without_statistics_reads_no_data(bench: Any) -> None:
    planned = bench.plan(recipe={"scheme": "W8A16", "weights": {"method": "RTN"}}, calibration=None)
    assert planned.plan.micro_batches == ()
    assert planned.plan.leaves == ()
    assert planned.plan.data_digest == ""
    assert planned.tokens.size == 0
    assert planned.plan.samples.used == 0
    assert planned.warnings == ()
    (bench.root / "data" / "calib.jsonl").unlink()
    unread = bench.plan(recipe={"scheme": "W8A16", "weights": {"method": "RTN"}})
    assert unread.plan == planned.plan


def test_tokens_are_those_of_the_micro_batches(bench: Any) -> None:
    planned = bench.plan(calibration__batchSize=4)
    assert planned.tokens.dtype.name == "int32"
    assert [batch.samples for batch in planned.plan.micro_batches] == [(0, 1, 2, 3), (4, 5)]
    lengths = [length for batch in planned.plan.micro_batches for length in batch.lengths]
    assert planned.offsets.tolist() == [0, *(sum(lengths[: i + 1]) for i in range(6))]
    assert len(planned.tokens) == planned.plan.samples.tokens_used
    assert planned.plan.leaves == ((0, 1), (1, 2))


def test_fewer_samples_than_asked_for_are_a_warning(bench: Any) -> None:
    planned = bench.plan(calibration__sampleCount=30)
    assert planned.plan.samples.used == 12
    (warning,) = planned.warnings
    assert "30 samples asked for, 12 used" in warning


def test_evaluation_windows_are_read_but_are_not_in_the_plan(bench: Any) -> None:
    source = {"pvc": {"claimName": "data", "path": "eval.jsonl"}}
    evaluation = {"source": source, "windowCount": 3, "windowLength": 40}
    planned = bench.plan(evaluation=evaluation)
    assert planned.windows is not None
    assert planned.windows.shape == (3, 40)
    assert planned.windows.dtype.name == "int64"
    assert planned.plan == bench.plan().plan


NOT_IN_THE_PLAN = {
    "workers": {"workers": {"count": 7, "processesPerWorker": 3, "threadsPerProcess": 2}},
    "run policy": {"runPolicy": {"backoffLimit": 9}},
    "checkpoint": {"checkpoint": {"everyLayers": 5}},
    "output path": {"output__pvc": {"claimName": "out", "path": "elsewhere/x"}},
    "overwrite policy": {"output__overwritePolicy": "Replace"},
    "warnings policy": {"recipe__warnings": "Fail"},
}


@pytest.mark.parametrize("changes", NOT_IN_THE_PLAN.values(), ids=list(NOT_IN_THE_PLAN))
def test_what_does_not_decide_bytes_is_not_in_the_plan(bench: Any, changes: Any) -> None:
    assert bench.plan(**changes).plan.digest == bench.plan().plan.digest


IN_THE_PLAN = {
    "scheme": {"recipe__scheme": "W8A8Dynamic"},
    "observer": {"recipe__activations": {"observer": "Percentile"}},
    "propagation": {"recipe__propagation": "Float"},
    "ignore": {"recipe__ignore": []},
    "samples": {"calibration__sampleCount": 5},
    "length": {"calibration__sequenceLength": 31},
    "batches": {"calibration__batchSize": 2},
    "formats": {"output__formats": ["Ascend"]},
    "order of formats": {"output__formats": ["Ascend", "CompressedTensors"]},
}


@pytest.mark.parametrize("changes", IN_THE_PLAN.values(), ids=list(IN_THE_PLAN))
def test_what_decides_bytes_is_in_the_plan(bench: Any, changes: Any) -> None:
    others = [bench.plan(), bench.plan(output__formats=["CompressedTensors", "Ascend"])]
    assert bench.plan(**changes).plan.digest not in {other.plan.digest for other in others}


def test_where_the_texts_lie_does_not_decide_bytes(bench: Any) -> None:
    moved = bench.root / "data" / "copy.jsonl"
    moved.write_bytes((bench.root / "data" / "calib.jsonl").read_bytes())
    source = {"pvc": {"claimName": "data", "path": "copy.jsonl"}}
    assert bench.plan(calibration__source=source).plan.digest == bench.plan().plan.digest


def test_a_plan_survives_json(bench: Any) -> None:
    plan = bench.plan(output__formats=["CompressedTensors", "Ascend"]).plan
    again = Plan.model_validate_json(plan.model_dump_json())
    assert again == plan
    assert again.digest == plan.digest


def test_another_process_with_other_hash_seeds_makes_the_same_plan(bench: Any) -> None:
    recipe = {"recipe__ignore": ["lm_head", "*.layers.0.mlp.*"], "recipe__transforms": SMOOTH}
    expected = bench.plan("qwen2", **recipe).plan.digest
    manifest = bench.manifest(**recipe)
    manifest["spec"]["model"]["source"]["pvc"]["path"] = "qwen2"
    code = (
        "import json, pathlib, sys\n"
        "from quantfleet_api.loading import parse_job\n"
        "from quantfleet_worker.planning import make_plan\n"
        "manifest, root = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])\n"
        "volumes = {name: root / name for name in ('models', 'data', 'out')}\n"
        "print(make_plan(parse_job(manifest), volumes=volumes).plan.digest)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(manifest), str(bench.root)],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [expected]

"""Whatever is wrong with a job: exit code 64, one line, no traceback, nothing left behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spoilt_jobs import Said

Spoil = Callable[[Any], None]
CASES: dict[str, tuple[Spoil, str, str]] = {}


def case(rule: str, value: str) -> Callable[[Spoil], Spoil]:
    """Registers a way to spoil a job: how the field and its rule, and how the value are told.

    Both are beginnings; {root} stands for the job's folder.
    """

    def register(spoil: Spoil) -> Spoil:
        CASES[spoil.__name__.replace("_", "-")] = (spoil, rule, value)
        return spoil

    return register


# the manifest


@case(
    "manifest: must be valid YAML (expected ',' or ']', but got '<stream end>' at lin",
    "'{root}/job.yaml'",
)
def no_yaml(job: Any) -> None:
    job.text = "spec: [1, 2"


@case("manifest: must be UTF-8 text (byte 3 is not)", "'{root}/job.yaml'")
def manifest_not_utf8(job: Any) -> None:
    job.text = "caf\udce9"


@case("manifest: must hold one document, not 0", "'{root}/job.yaml'")
def empty_manifest(job: Any) -> None:
    job.text = ""


@case("spec.recipe.weigths: unknown field, did you mean 'weights'?", "{}")
def unknown_field(job: Any) -> None:
    job.spec["recipe"]["weigths"] = {}


@case("apiVersion: must be 'quantfleet.io/v1alpha1'", "'quantfleet.io/v2'")
def unknown_version(job: Any) -> None:
    job.manifest["apiVersion"] = "quantfleet.io/v2"


@case(
    "metadata.name: must have at most 46 characters",
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
)
def name_too_long(job: Any) -> None:
    job.manifest["metadata"]["name"] = "a" * 60


@case("spec.recipe.scheme: must be 'W8A8', 'W8A8Dynamic', 'W8A16' or 'W4A16'", "'W2A2'")
def unknown_scheme(job: Any) -> None:
    job.spec["recipe"]["scheme"] = "W2A2"


@case("spec.calibration.sampleCount: must be an integer", "'many'")
def number_for_a_text(job: Any) -> None:
    job.spec["calibration"]["sampleCount"] = "many"


@case("spec.calibration.sampleCount: must be at least 1", "0")
def no_samples_wanted(job: Any) -> None:
    job.spec["calibration"]["sampleCount"] = 0


@case(
    "spec.model.source.pvc.path: must be a relative path without empty, '.' or '..' s",
    "'../secret'",
)
def path_leaves_the_claim(job: Any) -> None:
    job.spec["model"]["source"]["pvc"]["path"] = "../secret"


@case("spec.output.pvc.path: must be a relative path without empty, '.' or '..' segment", "'.'")
def output_is_the_claim_itself(job: Any) -> None:
    job.spec["output"]["pvc"]["path"] = "."


@case("spec.recipe.weights.gptq: is only allowed with method GPTQ", "'RTN'")
def gptq_options_for_rtn(job: Any) -> None:
    job.spec["recipe"]["weights"]["gptq"] = {"blockSize": 64}


@case("spec.model.trustRemoteCode: must be false: code that comes with a model is never", "True")
def code_of_the_model_trusted(job: Any) -> None:
    job.spec["model"]["trustRemoteCode"] = True


@case("spec.calibration: is required: the static scheme W8A8 needs calibration data", "None")
def data_needed_but_absent(job: Any) -> None:
    del job.spec["calibration"]


# the arguments


@case("--workers: must be from 1 to 10000", "0")
def no_workers(job: Any) -> None:
    job.options = ["--workers", "0"]


@case("--workers: must be from 1 to 10000", "-1")
def fewer_than_no_workers(job: Any) -> None:
    job.options = ["--workers", "-1"]


@case("--workers: must be from 1 to 10000", "100000")
def far_too_many_workers(job: Any) -> None:
    job.options = ["--workers", "100000"]


@case("spec.workers: must need at most the ", "'9000 ranks on this machine'")
def more_workers_than_memory(job: Any) -> None:
    job.options = ["--workers", "9000"]


@case("spec.calibration.source.pvc.claimName: names a volume that is not mapped: pass -", "'data'")
def claim_not_mapped(job: Any) -> None:
    job.volumes["data"] = ""


@case("--volume: must be CLAIM=DIR", "'models'")
def volume_without_a_folder(job: Any) -> None:
    job.options = ["--volume", "models"]


@case("--volume: must name a folder, not a file", "'data={root}/data/calib.jsonl'")
def volume_is_a_file(job: Any) -> None:
    job.volumes["data"] = str(job.data)


# the model


@case("spec.model.source: must be an existing folder", "{root}/models/lama")
def model_missing(job: Any) -> None:
    job.spec["model"]["source"]["pvc"]["path"] = "lama"


@case("spec.model.source: the folder must hold a config.json", "{root}/models/llama")
def config_missing(job: Any) -> None:
    (job.model / "config.json").unlink()


@case(
    "spec.model.source: config.json: must be valid JSON",
    "'Expecting value: line 1 column 16 (char 15)'",
)
def config_broken(job: Any) -> None:
    (job.model / "config.json").write_text('{"model_type": ')


@case(
    "spec.model.source: lm_head.weight: must have the shape [512, 4096] that config.j",
    "[512, 64]",
)
def config_without_a_size(job: Any) -> None:
    job.change_config(hidden_size=None)


@case(
    "spec.model.source: model.layers.0.mlp.down_proj.weight: must have the shape [64,",
    "[64, 160]",
)
def config_with_another_size(job: Any) -> None:
    job.change_config(intermediate_size=192)


@case(
    "spec.model.source: architecture must be one of LlamaForCausalLM, MistralForCausa",
    "'BertForMaskedLM'",
)
def unknown_architecture(job: Any) -> None:
    job.change_config(architectures=["BertForMaskedLM"], model_type="bert")


@case(
    "spec.model.source: architecture must be one of LlamaForCausalLM, MistralForCausa",
    "'MixtralForCausalLM'",
)
def experts(job: Any) -> None:
    job.change_config(architectures=["MixtralForCausalLM"], model_type="mixtral")


@case(
    "spec.model.source: config.json: quantization_config: must be absent: the source ",
    "{'quant_method': 'gptq', 'bits': 4}",
)
def quantized_already(job: Any) -> None:
    job.change_config(quantization_config={"quant_method": "gptq", "bits": 4})


@case(
    "spec.model.source: weights must be safetensors: model.safetensors or model.safet",
    "'no weights'",
)
def weights_missing(job: Any) -> None:
    (job.model / "model.safetensors").unlink()


@case(
    "spec.model.source: weights must be safetensors: model.safetensors or model.safet",
    "'pytorch_model.bin'",
)
def weights_in_another_format(job: Any) -> None:
    (job.model / "model.safetensors").rename(job.model / "pytorch_model.bin")


@case("spec.model.source: model-00001-of-00002.safetensors: must exist", "'no such file'")
def shard_missing(job: Any) -> None:
    weights = {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}
    (job.model / "model.safetensors").unlink()
    index = job.model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weights}))


@case("spec.model.source: model.safetensors.index.json: must be a JSON object", "'list'")
def index_broken(job: Any) -> None:
    (job.model / "model.safetensors").unlink()
    (job.model / "model.safetensors.index.json").write_text("[]")


@case(
    "spec.model.source: model.safetensors: must have the 609640 bytes that its header",
    "'609636 bytes'",
)
def weights_truncated(job: Any) -> None:
    path = job.model / "model.safetensors"
    os.truncate(path, path.stat().st_size - 4)


@case(
    "spec.model.source: model.safetensors: must be valid JSON",
    "'Expecting value: line 1 column 2 (char 1)'",
)
def weights_header_garbage(job: Any) -> None:
    path = job.model / "model.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0 this is no json" + bytes(100))


@case(
    "spec.model.source: model.safetensors: must be a whole safetensors file (truncate",
    "'0 bytes, header of 0'",
)
def weights_empty(job: Any) -> None:
    (job.model / "model.safetensors").write_bytes(b"")


@case(
    "spec.model.source: model.safetensors: model.layers.1.mlp.up_proj.weight: weights must be "
    "finite",
    "'64 that are not'",
)
def weight_not_finite(job: Any) -> None:
    job.change_weights(lambda t: t["model.layers.1.mlp.up_proj.weight"][3].fill_(float("nan")))


@case(
    "spec.model.source: must hold this tensor, which the architecture needs",
    "'model.layers.1.self_attn.k_proj.weight'",
)
def tensor_missing(job: Any) -> None:
    job.change_weights(lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"))


@case(
    "spec.model.source: must hold no tensor that the architecture does not know",
    "'model.layers.1.self_attn.q_proj.bias'",
)
def tensor_too_many(job: Any) -> None:
    job.change_weights(lambda t: t.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(64)}))


@case("spec.model.source: model.norm.weight: must have the shape [64] that config.json ", "[65]")
def tensor_of_another_shape(job: Any) -> None:
    job.change_weights(lambda t: t.update({"model.norm.weight": torch.ones(65)}))


@case("spec.model.source: model.layers.0.mlp.up_proj.weight: must have dtype F32 like t", "'I8'")
def tensors_of_an_integer_dtype(job: Any) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(160, 64, dtype=torch.int8)

    job.change_weights(change)


@case(
    "spec.model.source: must hold a tokenizer, one of tokenizer.json, tokenizer.model",
    "{root}/models/llama",
)
def tokenizer_missing(job: Any) -> None:
    for path in job.model.glob("*token*"):
        path.unlink()


@case("spec.model.source: tokenizer: transformers must load it", "\"KeyError: 'added_tokens'\"")
def tokenizer_broken(job: Any) -> None:
    (job.model / "tokenizer.json").write_text("{}")


@case("spec.calibration.source: text 1: token ids must be below 100, the vocab_size of ", "360")
def vocabulary_smaller_than_the_tokenizer(job: Any) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors[name][:100].clone()

    job.change_weights(change)
    job.change_config(vocab_size=100)


@case(
    "spec.calibration.source: text 1: the tokenizer must have a chat template to rend",
    "'no chat template'",
)
def chat_template_missing(job: Any) -> None:
    for path in job.model.glob("chat_template*"):
        path.unlink()
    path = job.model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template", None)
    path.write_text(json.dumps(config))
    job.data.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}) + "\n")
    job.spec["calibration"]["textField"] = "messages"


# the data


@case("spec.calibration.source: must be an existing file", "{root}/data/calib.jsonl")
def data_missing(job: Any) -> None:
    job.data.unlink()


@case("spec.calibration.source: must hold at least one text", "{root}/data/calib.jsonl")
def data_empty(job: Any) -> None:
    job.data.write_text("")


@case(
    "spec.calibration.source: at least one text must have 20 tokens",
    "'1 texts with 1 tokens in all'",
)
def data_too_short(job: Any) -> None:
    job.data.write_text('{"text": "a"}\n')
    job.spec["calibration"]["minTokens"] = 20


@case(
    "spec.calibration.source: {root}/data/calib.jsonl, line 1: must be UTF-8",
    "'byte 0xe9 at offset 13'",
)
def data_not_utf8(job: Any) -> None:
    job.data.write_bytes(b'{"text": "caf\xe9"}\n')


@case(
    "spec.calibration.source: {root}/data/calib.jsonl, line 2: must be valid JSON",
    "'Expecting value: line 1 column 9 (char 8)'",
)
def data_line_is_no_json(job: Any) -> None:
    job.data.write_text('{"text": "a"}\n{"text": \n')


@case(
    "spec.calibration.source: {root}/data/calib.jsonl, line 2: must have the field 't",
    "'fields txt'",
)
def data_line_without_the_field(job: Any) -> None:
    job.data.write_text('{"text": "a"}\n{"txt": "b"}\n')


@case("spec.calibration.source: {root}/data/calib.jsonl, line 1: 'text' must be a strin", "'int'")
def data_line_with_a_number(job: Any) -> None:
    job.data.write_text('{"text": 3}\n')


@case("spec.calibration.source: must end in .jsonl, .json, .parquet, .txt", "'calib.csv'")
def data_of_an_unknown_kind(job: Any) -> None:
    job.data.rename(job.data.with_suffix(".csv"))
    job.spec["calibration"]["source"]["pvc"]["path"] = "calib.csv"


@case(
    "spec.calibration.source: {root}/data/calib.parquet: must be a Parquet file",
    "'Parquet magic bytes not found in footer. Either the file is corrupted or this i",
)
def data_parquet_broken(job: Any) -> None:
    job.data.rename(job.data.with_suffix(".parquet"))
    job.spec["calibration"]["source"]["pvc"]["path"] = "calib.parquet"


@case("spec.calibration.sequenceLength: must be at most the model's 1024 positions", "4096")
def sequences_longer_than_the_model_allows(job: Any) -> None:
    job.spec["calibration"]["sequenceLength"] = 4096


@case("spec.evaluation.source: 4 windows of 1000 need that many tokens in all", "'256 tokens'")
def evaluation_too_short(job: Any) -> None:
    job.spec["evaluation"] = {
        "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
        "windowCount": 4,
        "windowLength": 1000,
    }


# the recipe


@case("spec.recipe.weights.groupSize: must divide the 64 input features of model.layers", "128")
def group_size_that_does_not_divide(job: Any) -> None:
    job.spec["recipe"] = {"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 128}}


@case(
    "spec.recipe.overrides[0].targets[0]: must name at least one linear of the model,",
    "'*.layers.9.mlp.down_proj'",
)
def target_that_names_no_module(job: Any) -> None:
    override = {"targets": ["*.layers.9.mlp.down_proj"], "scheme": "W8A16"}
    job.spec["recipe"]["overrides"] = [override]


@case("spec.recipe.overrides[0].targets[0]: must be a valid regular expression after 'r", "'re:('")
def target_is_a_broken_pattern(job: Any) -> None:
    job.spec["recipe"]["overrides"] = [{"targets": ["re:("], "scheme": "W8A16"}]


@case(
    "spec.recipe.ignore[1]: must name at least one linear of the model, for example *",
    "'*.o_porj'",
)
def ignore_that_names_no_module(job: Any) -> None:
    job.spec["recipe"]["ignore"] = ["lm_head", "*.o_porj"]


@case(
    "spec.recipe.overrides[0].targets[0]: must not name the embedding, which cannot b",
    "'model.embed_tokens'",
)
def embeddings_targeted(job: Any) -> None:
    job.spec["recipe"]["overrides"] = [{"targets": ["model.embed_tokens"], "scheme": "W8A16"}]


@case(
    "spec.recipe: must leave at least one linear to quantize (overrides and ignore ta",
    "'scheme W8A8'",
)
def all_ignored(job: Any) -> None:
    job.spec["recipe"]["ignore"] = ["*"]


@case(
    "spec.output.formats[0]: must have what model.layers.0.self_attn.q_proj needs, W4",
    "'Ascend'",
)
def ascend_with_w4a16(job: Any) -> None:
    job.spec["recipe"] = {"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 32}}
    job.spec["output"]["formats"] = ["Ascend"]


# the output


@case(
    "spec.output.pvc.path: must not exist yet (overwritePolicy Replace replaces it)",
    "'{root}/out/result'",
)
def output_exists(job: Any) -> None:
    job.output.mkdir()
    (job.output / "precious").write_text("do not touch")


@case("spec.output.pvc.path: must be a folder where it exists", "'{root}/out/result'")
def output_is_a_file(job: Any) -> None:
    job.output.write_text("do not touch")


@case(
    "spec.output.pvc.path: must not lie in the model, {root}/models/llama",
    "'{root}/models/llama/result'",
)
def output_inside_the_model(job: Any) -> None:
    job.volumes["out"] = str(job.model)


@case(
    "spec.output.pvc.path: must lie in folders, but {root}/out/file is none",
    "'{root}/out/file/result'",
)
def output_under_a_file(job: Any) -> None:
    (job.root / "out" / "file").write_text("")
    job.spec["output"]["pvc"]["path"] = "file/result"


@case(
    "spec.output.pvc.path: must not hold what is read, {root}/out/result/calib.jsonl",
    "'{root}/out/result'",
)
def output_holds_the_data(job: Any) -> None:
    job.output.mkdir()
    job.data.rename(job.output / "calib.jsonl")
    job.volumes["data"] = str(job.output)
    job.spec["output"]["overwritePolicy"] = "Replace"


FOUND_BY_A_RANK = "weight-not-finite"
"""Weights are read by ranks only; which one, and where it was, is told first."""


def check_said(said: Any, job: Any, name: str) -> None:
    """One line with field, rule and value, and no more."""
    _, rule, value = CASES[name]
    line = said.stderr.replace(str(job.root), "{root}")
    assert said.code == 64, line
    assert "Traceback" not in said.stdout + line
    assert line.count("\n") == 1
    start = "error: "
    if name == FOUND_BY_A_RANK:
        place = re.match(r"error: rank \d, calibrating layer 2 of 4 \(model.layers.1\): ", line)
        assert place is not None, line
        start = place[0]
    assert line.startswith(start + rule), line
    assert f", got {value}" in line, line


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line_and_leaves_nothing(job: Any, quantfleet: Any, name: str) -> None:
    CASES[name][0](job)
    typed = job.arguments()
    before = job.everything()
    check_said(quantfleet(typed), job, name)
    assert job.everything() == before


@pytest.mark.parametrize(
    "name", ["unknown-field", "data-line-is-no-json", FOUND_BY_A_RANK, "output-exists"]
)
def test_bad_input_is_one_line_of_a_real_process(job: Any, name: str) -> None:
    """Planning and ranks are processes, which share what the command writes to."""
    CASES[name][0](job)
    typed = job.arguments()
    before = job.everything()
    done = subprocess.run(
        [sys.executable, "-m", "quantfleet_cli", *typed],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    check_said(Said(done.returncode, done.stdout, done.stderr), job, name)
    assert job.everything() == before


@pytest.mark.parametrize(
    "name",
    [
        "more-workers-than-memory",
        "unknown-architecture",
        "weights-truncated",
        "data-line-without-the-field",
        "ignore-that-names-no-module",
        "output-exists",
    ],
)
def test_plan_refuses_for_the_same_reason(job: Any, quantfleet: Any, name: str) -> None:
    CASES[name][0](job)
    before = job.everything()
    said = quantfleet(job.arguments("plan"))
    assert said.stderr.startswith("refused: ")
    told = said.stderr.replace("refused: ", "error: ", 1)
    check_said(Said(said.code, said.stdout, told), job, name)
    assert job.everything() == before


def test_right_job_succeeds(job: Any, quantfleet: Any) -> None:
    """What the cases spoil."""
    said = quantfleet(job.arguments())
    assert said.code == 0, said.stderr
    assert said.stderr == ""


def test_bad_weight_keeps_the_work_of_before(job: Any, quantfleet: Any) -> None:
    """A folder that was there before the mistake is not the mistake's to remove."""
    name = FOUND_BY_A_RANK
    whole = (job.model / "model.safetensors").read_bytes()
    work = job.output.with_name("result.work")
    work.mkdir()
    (work / "attempt-3").mkdir()
    CASES[name][0](job)
    said = quantfleet(job.arguments())
    assert said.code == 64
    assert "weights must be finite" in said.stderr
    (journal,) = work.glob("attempt-4/journal.json")
    assert len(json.loads(journal.read_text())["layers"]) >= 1
    (job.model / "model.safetensors").write_bytes(whole)
    assert quantfleet(job.arguments()).code == 0

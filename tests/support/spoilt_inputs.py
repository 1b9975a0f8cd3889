"""Ways to spoil model and data of a job; each says how it is told."""

import json
import os

import torch

from spoilt_jobs import Job, case

# the model


@case("spec.model.source: must be an existing folder", "{root}/models/lama")
def model_missing(job: Job) -> None:
    job.spec["model"]["source"]["pvc"]["path"] = "lama"


@case("spec.model.source: the folder must hold a config.json", "{root}/models/llama")
def config_missing(job: Job) -> None:
    (job.model / "config.json").unlink()


@case(
    "spec.model.source: config.json: must be valid JSON",
    "'Expecting value: line 1 column 16 (char 15)'",
)
def config_broken(job: Job) -> None:
    (job.model / "config.json").write_text('{"model_type": ')


@case(
    "spec.model.source: lm_head.weight: must have the shape [512, 4096] that config.j",
    "[512, 64]",
)
def config_without_a_size(job: Job) -> None:
    job.change_config(hidden_size=None)


@case(
    "spec.model.source: model.layers.0.mlp.down_proj.weight: must have the shape [64,",
    "[64, 160]",
)
def config_with_another_size(job: Job) -> None:
    job.change_config(intermediate_size=192)


@case(
    "spec.model.source: architecture must be one of LlamaForCausalLM, MistralForCausa",
    "'BertForMaskedLM'",
)
def unknown_architecture(job: Job) -> None:
    job.change_config(architectures=["BertForMaskedLM"], model_type="bert")


@case(
    "spec.model.source: architecture must be one of LlamaForCausalLM, MistralForCausa",
    "'MixtralForCausalLM'",
)
def experts(job: Job) -> None:
    job.change_config(architectures=["MixtralForCausalLM"], model_type="mixtral")


@case(
    "spec.model.source: config.json: quantization_config: must be absent: the source ",
    "{'quant_method': 'gptq', 'bits': 4}",
)
def quantized_already(job: Job) -> None:
    job.change_config(quantization_config={"quant_method": "gptq", "bits": 4})


@case(
    "spec.model.source: weights must be safetensors: model.safetensors or model.safet",
    "'no weights'",
)
def weights_missing(job: Job) -> None:
    (job.model / "model.safetensors").unlink()


@case(
    "spec.model.source: weights must be safetensors: model.safetensors or model.safet",
    "'pytorch_model.bin'",
)
def weights_in_another_format(job: Job) -> None:
    (job.model / "model.safetensors").rename(job.model / "pytorch_model.bin")


@case("spec.model.source: model-00001-of-00002.safetensors: must exist", "'no such file'")
def shard_missing(job: Job) -> None:
    weights = {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}
    (job.model / "model.safetensors").unlink()
    index = job.model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weights}))


@case("spec.model.source: model.safetensors.index.json: must be a JSON object", "'list'")
def index_broken(job: Job) -> None:
    (job.model / "model.safetensors").unlink()
    (job.model / "model.safetensors.index.json").write_text("[]")


@case(
    "spec.model.source: model.safetensors: must have the 609640 bytes that its header",
    "'609636 bytes'",
)
def weights_truncated(job: Job) -> None:
    path = job.model / "model.safetensors"
    os.truncate(path, path.stat().st_size - 4)


@case(
    "spec.model.source: model.safetensors: must be valid JSON",
    "'Expecting value: line 1 column 2 (char 1)'",
)
def weights_header_garbage(job: Job) -> None:
    path = job.model / "model.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0 this is no json" + bytes(100))


@case(
    "spec.model.source: model.safetensors: must be a whole safetensors file (truncate",
    "'0 bytes, header of 0'",
)
def weights_empty(job: Job) -> None:
    (job.model / "model.safetensors").write_bytes(b"")


@case(
    "spec.model.source: model.safetensors: model.layers.1.mlp.up_proj.weight: weights must be "
    "finite",
    "'64 that are not'",
)
def weight_not_finite(job: Job) -> None:
    job.change_weights(lambda t: t["model.layers.1.mlp.up_proj.weight"][3].fill_(float("nan")))


@case(
    "spec.model.source: must hold this tensor, which the architecture needs",
    "'model.layers.1.self_attn.k_proj.weight'",
)
def tensor_missing(job: Job) -> None:
    job.change_weights(lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"))


@case(
    "spec.model.source: must hold no tensor that the architecture does not know",
    "'model.layers.1.self_attn.q_proj.bias'",
)
def tensor_too_many(job: Job) -> None:
    job.change_weights(lambda t: t.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(64)}))


@case("spec.model.source: model.norm.weight: must have the shape [64] that config.json ", "[65]")
def tensor_of_another_shape(job: Job) -> None:
    job.change_weights(lambda t: t.update({"model.norm.weight": torch.ones(65)}))


@case("spec.model.source: model.layers.0.mlp.up_proj.weight: must have dtype F32 like t", "'I8'")
def tensors_of_an_integer_dtype(job: Job) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(160, 64, dtype=torch.int8)

    job.change_weights(change)


@case(
    "spec.model.source: must hold a tokenizer, one of tokenizer.json, tokenizer.model",
    "{root}/models/llama",
)
def tokenizer_missing(job: Job) -> None:
    for path in job.model.glob("*token*"):
        path.unlink()


@case("spec.model.source: tokenizer: transformers must load it", "\"KeyError: 'added_tokens'\"")
def tokenizer_broken(job: Job) -> None:
    (job.model / "tokenizer.json").write_text("{}")


@case("spec.calibration.source: text 1: token ids must be below 100, the vocab_size of ", "360")
def vocabulary_smaller_than_the_tokenizer(job: Job) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors[name][:100].clone()

    job.change_weights(change)
    job.change_config(vocab_size=100)


@case(
    "spec.calibration.source: text 1: the tokenizer must have a chat template to rend",
    "'no chat template'",
)
def chat_template_missing(job: Job) -> None:
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
def data_missing(job: Job) -> None:
    job.data.unlink()


@case("spec.calibration.source: must hold at least one text", "{root}/data/calib.jsonl")
def data_empty(job: Job) -> None:
    job.data.write_text("")


@case(
    "spec.calibration.source: at least one text must have 20 tokens",
    "'1 texts with 1 tokens in all'",
)
def data_too_short(job: Job) -> None:
    job.data.write_text('{"text": "a"}\n')
    job.spec["calibration"]["minTokens"] = 20


@case(
    "spec.calibration.source: {root}/data/calib.jsonl, line 1: must be UTF-8",
    "'byte 0xe9 at offset 13'",
)
def data_not_utf8(job: Job) -> None:
    job.data.write_bytes(b'{"text": "caf\xe9"}\n')


@case(
    "spec.calibration.source: {root}/data/calib.jsonl, line 2: must be valid JSON",
    "'Expecting value: line 1 column 9 (char 8)'",
)
def data_line_is_no_json(job: Job) -> None:
    job.data.write_text('{"text": "a"}\n{"text": \n')


@case(
    "spec.calibration.source: {root}/data/calib.jsonl, line 2: must have the field 't",
    "'fields txt'",
)
def data_line_without_the_field(job: Job) -> None:
    job.data.write_text('{"text": "a"}\n{"txt": "b"}\n')


@case("spec.calibration.source: {root}/data/calib.jsonl, line 1: 'text' must be a strin", "'int'")
def data_line_with_a_number(job: Job) -> None:
    job.data.write_text('{"text": 3}\n')


@case("spec.calibration.source: must end in .jsonl, .json, .parquet, .txt", "'calib.csv'")
def data_of_an_unknown_kind(job: Job) -> None:
    job.data.rename(job.data.with_suffix(".csv"))
    job.spec["calibration"]["source"]["pvc"]["path"] = "calib.csv"


@case(
    "spec.calibration.source: {root}/data/calib.parquet: must be a Parquet file",
    "'Parquet magic bytes not found in footer. Either the file is corrupted or this i",
)
def data_parquet_broken(job: Job) -> None:
    job.data.rename(job.data.with_suffix(".parquet"))
    job.spec["calibration"]["source"]["pvc"]["path"] = "calib.parquet"


@case("spec.calibration.sequenceLength: must be at most the model's 1024 positions", "4096")
def sequences_longer_than_the_model_allows(job: Job) -> None:
    job.spec["calibration"]["sequenceLength"] = 4096


@case("spec.evaluation.source: 4 windows of 1000 need that many tokens in all", "'256 tokens'")
def evaluation_too_short(job: Job) -> None:
    job.spec["evaluation"] = {
        "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
        "windowCount": 4,
        "windowLength": 1000,
    }

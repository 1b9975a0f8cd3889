"""Tiny random checkpoints and tokenizers for every test: real files and architectures, no download.

The weights are larger than a fresh initialisation would make them, so that attention is not
uniform and an error in positions, masks, norms or biases shows in the logits.
"""

import json
import random
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FamilyName = Literal["llama", "mistral", "qwen2", "qwen3"]
FAMILIES: tuple[FamilyName, ...] = ("llama", "mistral", "qwen2", "qwen3")
VOCAB_SIZE = 512

_CLASSES: dict[FamilyName, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
_OWN_SETTINGS: dict[FamilyName, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
}
_WORDS = (
    "the a of and to in is was for on river stone house light winter market engine paper "
    "green small old seven carry build measure follow under before machine garden silver"
).split()
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def tiny_texts(count: int, *, words: int = 40, seed: int = 0) -> list[str]:
    """`count` different texts of about `words` words (each one to four tokens long)."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(_WORDS, k=words)) + "." for _ in range(count)]


def make_tiny_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE of at most 512 tokens, with a chat template, and saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(tiny_texts(50), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = _CHAT_TEMPLATE
    fast.save_pretrained(str(folder))
    return fast


def make_tiny_model(
    folder: Path,
    family: FamilyName = "llama",
    *,
    dtype: torch.dtype = torch.float32,
    tied: bool = False,
    layers: int = 2,
    seed: int = 0,
    shard_bytes: int | None = None,
    tokenizer: bool = True,
    **config: Any,
) -> Path:
    """Saves a random Hugging Face checkpoint: config, generation config, safetensors, tokenizer.

    Hidden 64, ffn 160, 4 query and 2 kv heads of 16 channels, vocabulary 512; `config` overrides
    any field. `shard_bytes` splits it into several files with an index. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = _random_model(family, tied=tied, layers=layers, seed=seed, config=config).to(dtype)
    model.config.dtype = dtype
    limit = {} if shard_bytes is None else {"max_shard_size": shard_bytes}
    model.save_pretrained(str(folder), **limit)
    (folder / "LICENSE").write_text("A tiny random model; use it as you like.\n", encoding="utf-8")
    if tokenizer:
        make_tiny_tokenizer(folder)
    return folder


def write_jsonl(path: Path, texts: list[str], *, field: str = "text") -> Path:
    """A calibration file with one object a line."""
    lines = [json.dumps({field: text}) for text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _random_model(
    family: FamilyName, *, tied: bool, layers: int, seed: int, config: dict[str, Any]
) -> Any:
    config_class, model_class = _CLASSES[family]
    settings = {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 1024,
        "num_hidden_layers": layers,
        "tie_word_embeddings": tied,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **_OWN_SETTINGS[family],
        **config,
    }
    model = model_class(config_class(**settings)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random_values(name, parameter, generator))
    return model


def _random_values(name: str, parameter: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    if "norm" in name:
        return 1.0 + 0.2 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if "embed_tokens" in name:
        return noise
    return noise * (1.5 / parameter.shape[-1] ** 0.5)

"""Layers run one at a time give what the whole transformers model gives."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from quantfleet_worker.models.layers import Blocks
from quantfleet_worker.models.registry import family_of
from tiny_models import FAMILIES, VOCAB_SIZE, FamilyName, make_tiny_model

PER_LAYER_WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[FamilyName, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-no-gqa": ("llama", {"num_key_value_heads": 4}),
    "llama-wide-heads": ("llama", {"head_dim": 32}),
    "llama-llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "qwen2-window": ("qwen2", PER_LAYER_WINDOW),
    "qwen3-window": ("qwen3", PER_LAYER_WINDOW),
    "qwen3-biases-wide-heads": ("qwen3", {"attention_bias": True, "head_dim": 32}),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


def blocks_of(folder: Path, dtype: torch.dtype) -> tuple[Blocks, dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_text())
    return Blocks(family_of(config), config, dtype), load_file(folder / "model.safetensors")


def hidden_states(blocks: Blocks, weights: dict[str, Tensor], ids_BL: Tensor) -> list[Tensor]:
    """As transformers lists them: the embedding, after each layer, the last one normed."""
    states = [blocks.embed(weights["model.embed_tokens.weight"], ids_BL)]
    for index in range(blocks.num_layers):
        module = blocks.decoder(index)
        names = blocks.parameters(index)
        blocks.assign(module, {name: weights[f"model.layers.{index}.{name}"] for name in names})
        states.append(blocks.run(module, states[-1]))
    states[-1] = blocks.final_norm(weights["model.norm.weight"], states[-1])
    return states


def random_ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_hidden_state_and_the_logits_are_those_of_the_whole_model(
    tmp_path: Path, variant: str, dtype: torch.dtype
) -> None:
    family, config = VARIANTS[variant]
    make_tiny_model(tmp_path, family, dtype=dtype, layers=3, tokenizer=False, **config)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    blocks, weights = blocks_of(tmp_path, dtype)
    for length in (1, 5, 7, 8, 33):
        ids_BL = random_ids(2, length, seed=length)
        with torch.no_grad():
            expected = model(ids_BL, output_hidden_states=True)
        states = hidden_states(blocks, weights, ids_BL)
        logits = blocks.head(weights["lm_head.weight"], states[-1])
        for ours, theirs in zip(
            [*states, logits], [*expected.hidden_states, expected.logits], strict=True
        ):
            # Where the window is as long as the text we need no mask, and transformers gives one.
            exact = 7 not in (length, config.get("sliding_window"))
            torch.testing.assert_close(ours, theirs, **({"rtol": 0, "atol": 0} if exact else {}))


def test_tied_embeddings_serve_as_the_head(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "qwen2", tied=True, tokenizer=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    blocks, weights = blocks_of(tmp_path, torch.float32)
    assert "lm_head.weight" not in weights
    ids_BL = random_ids(1, 12)
    with torch.no_grad():
        expected = model(ids_BL).logits
    state = hidden_states(blocks, weights, ids_BL)[-1]
    torch.testing.assert_close(blocks.head(weights["model.embed_tokens.weight"], state), expected)


@pytest.mark.parametrize("variant", ["llama", "mistral-window", "qwen3-window"])
def test_pads_on_the_right_change_no_valid_token(tmp_path: Path, variant: str) -> None:
    family, config = VARIANTS[variant]
    make_tiny_model(tmp_path, family, layers=2, tokenizer=False, **config)
    blocks, weights = blocks_of(tmp_path, torch.float32)
    lengths = (3, 20, 11)
    padded_BL = torch.zeros((3, 20), dtype=torch.int64)
    samples = [random_ids(1, length, seed=length) for length in lengths]
    for row, sample in enumerate(samples):
        padded_BL[row, : sample.shape[1]] = sample
    together = hidden_states(blocks, weights, padded_BL)[-1]
    assert torch.isfinite(together).all()
    for row, sample in enumerate(samples):
        alone = hidden_states(blocks, weights, sample)[-1]
        # Another shape lets the matrix kernels add in another order.
        torch.testing.assert_close(
            together[row : row + 1, : sample.shape[1]], alone, rtol=1e-4, atol=1e-5
        )


def test_a_window_hides_what_lies_further_back(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "mistral", layers=1, tokenizer=False, sliding_window=4)
    blocks, weights = blocks_of(tmp_path, torch.float32)
    ids_BL = random_ids(1, 10)
    changed_BL = ids_BL.clone()
    changed_BL[0, 2] += 1
    difference = (
        hidden_states(blocks, weights, ids_BL)[-1] - hidden_states(blocks, weights, changed_BL)[-1]
    )
    seen = difference[0].abs().amax(dim=-1) > 0
    assert seen.tolist() == [False, False, True, True, True, True, False, False, False, False]


def test_a_length_has_the_same_positions_whatever_ran_before(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    make_tiny_model(
        tmp_path, layers=1, tokenizer=False, max_position_embeddings=16, rope_parameters=rope
    )
    fresh, weights = blocks_of(tmp_path, torch.float32)
    used, _ = blocks_of(tmp_path, torch.float32)
    for length in (64, 8, 40):
        hidden_states(used, weights, random_ids(1, length))
    ids_BL = random_ids(1, 24)
    assert torch.equal(
        hidden_states(used, weights, ids_BL)[-1], hidden_states(fresh, weights, ids_BL)[-1]
    )


def test_assigned_tensors_are_not_copied_and_take_no_gradient(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, tokenizer=False)
    blocks, weights = blocks_of(tmp_path, torch.float32)
    module = blocks.decoder(0)
    assert all(parameter.is_meta for parameter in module.parameters())
    tensors = {name: weights[f"model.layers.0.{name}"] for name in blocks.parameters(0)}
    blocks.assign(module, tensors)
    for name, parameter in module.named_parameters():
        assert parameter.data_ptr() == tensors[name].data_ptr()
    out = blocks.run(module, torch.ones(1, 4, 64))
    assert not out.requires_grad
    blocks.assign(module, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    assert torch.equal(blocks.run(module, torch.ones(1, 4, 64)), torch.ones(1, 4, 64))


def _without(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t for n, t in tensors.items() if n != "mlp.up_proj.weight"}


def _with_more(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "mlp.up_proj.bias": torch.zeros(160)}


def _of_other_shape(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "mlp.up_proj.weight": torch.zeros(64, 160)}


def _of_other_dtype(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "mlp.up_proj.weight": torch.zeros(160, 64, dtype=torch.bfloat16)}


@pytest.mark.parametrize("change", [_without, _with_more, _of_other_shape, _of_other_dtype])
def test_assign_takes_exactly_the_layers_parameters(tmp_path: Path, change: Any) -> None:
    make_tiny_model(tmp_path, tokenizer=False)
    blocks, weights = blocks_of(tmp_path, torch.float32)
    tensors = {name: weights[f"model.layers.0.{name}"] for name in blocks.parameters(0)}
    with pytest.raises(AssertionError, match=r"mlp\.up_proj"):
        blocks.assign(blocks.decoder(0), change(tensors))

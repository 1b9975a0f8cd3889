"""Does a rank need the memory that `quantfleet plan` prints? On a model with layers of real size.

The model is random (weights decide no memory): Llama, 2 layers of 95 million parameters in float32.
Measured is each rank's peak resident memory above what it had after its imports and the start of
the gang, against the sum that the plan prints for it.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed import manifest
from quantfleet_api.loading import parse_job
from quantfleet_worker.launch import run_job

LAYERS, HIDDEN, INTERMEDIATE, HEADS, VOCABULARY = 2, 2560, 10240, 20, 4096
SAMPLES, TOKENS = 8, 128
LIMIT = 0.10
RECIPES: dict[str, Mapping[str, Any]] = {
    "w8a8-quantized": {
        "scheme": "W8A8",
        "weights": {"method": "RTN"},
        "activations": {"symmetric": False, "observer": "MinMax"},
        "propagation": "Quantized",
    },
    "w4a16-g64-gptq-quantized": {
        "scheme": "W4A16",
        "weights": {"method": "GPTQ", "groupSize": 64},
        "propagation": "Quantized",
    },
}


def run(ranks: tuple[int, ...] = (1, 2)) -> None:
    """Print a JSON line a recipe and number of ranks."""
    with tempfile.TemporaryDirectory(prefix="quantfleet-bench-") as name:
        folder = Path(name)
        make_model(folder / "models" / "wide")
        for recipe in RECIPES:
            for count in ranks:
                print(json.dumps(_figure(folder, recipe, count)), flush=True)


def make_model(folder: Path) -> None:
    """A random checkpoint with a tokenizer of single characters, and texts beside it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 4,
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="400MB")
    letters = {letter: index for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    data = folder.parent.parent / "data"
    data.mkdir()
    texts = ["".join(chr(97 + (i * k) % 26) for i in range(TOKENS)) for k in range(1, SAMPLES + 1)]
    (data / "calib.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))


def _figure(folder: Path, recipe: str, ranks: int) -> dict[str, Any]:
    from quantfleet_worker.memory import memory_sum
    from quantfleet_worker.planning import make_plan

    job = parse_job(manifest(RECIPES[recipe], folder / "models" / "wide", SAMPLES))
    out = folder / f"{recipe}-{ranks}"
    out.mkdir()
    volumes = {"models": folder / "models", "data": folder / "data", "out": out}
    items = memory_sum(make_plan(job, volumes=volumes).plan, world_size=ranks)
    planned = sum(item.num_bytes for item in items)
    outcome = run_job(job, volumes=volumes, workers=ranks)
    if outcome.exit_code or outcome.report is None:
        raise SystemExit(f"error: {outcome.cause}")
    peaks = [rank["peakMemoryAboveStartBytes"] for rank in outcome.report["ranks"]]
    return {
        "figure": f"peak memory of a rank over the plan's sum, {recipe}, {ranks} ranks",
        "ratio": round(max(peaks) / planned, 3),
        "limit": [round(1 - LIMIT, 2), round(1 + LIMIT, 2)],
        "planned_MiB": planned >> 20,
        "peaks_MiB": [peak >> 20 for peak in peaks],
        "sum_MiB": {item.name: item.num_bytes >> 20 for item in items},
    }

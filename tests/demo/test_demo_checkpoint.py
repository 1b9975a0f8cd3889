"""The converted demo model is the real one, and its texts are split as documented."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.demo


class Demo(Protocol):
    model: Path
    cut_model: Path
    calibration: Path
    evaluation: Path


@pytest.fixture(scope="module")
def tokenizer(demo: Demo) -> Any:
    return AutoTokenizer.from_pretrained(demo.model)


@pytest.fixture(scope="module")
def model(demo: Demo) -> Any:
    torch.set_num_threads(1)
    loaded, info = AutoModelForCausalLM.from_pretrained(demo.model, output_loading_info=True)
    assert not any(info.values()), info
    return loaded


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def split_of(title: str) -> int:
    return int(hashlib.sha256(title.encode()).hexdigest(), 16) % 20


def test_it_knows_the_capital_of_france(model: Any, tokenizer: Any) -> None:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=10, do_sample=False)
    text = tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text == "The capital of France is Paris."


def test_perplexity_on_held_out_text_is_that_of_the_trained_model(
    model: Any, tokenizer: Any, demo: Demo
) -> None:
    text = "".join(line["text"] for line in lines(demo.evaluation)[:40])
    windows = torch.tensor(tokenizer(text)["input_ids"][: 2 * 512]).reshape(2, 512)
    with torch.no_grad():
        logits = model(windows).logits[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, windows[:, 1:].flatten())
    assert 12 < math.exp(loss.item()) < 18


def test_tokenizer_gives_back_any_text(tokenizer: Any) -> None:
    text = "H\u00e9llo 123  w\u00f6rld\n\n\tdef f(x): \u4f60\u597d \U0001f642 it's"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(tokenizer("123")["input_ids"]) == 3  # digits one by one


def test_cut_model_holds_the_first_layers_of_the_whole(demo: Demo) -> None:
    with (
        safe_open(demo.model / "model.safetensors", framework="pt") as whole,
        safe_open(demo.cut_model / "model.safetensors", framework="pt") as cut,
    ):
        names = set(cut.keys())
        missing = set(whole.keys()) - names
        assert {int(name.split(".")[2]) for name in missing} == set(range(2, 30))
        name = "model.layers.1.self_attn.q_proj.weight"
        assert torch.equal(whole.get_tensor(name), cut.get_tensor(name))
    assert json.loads((demo.cut_model / "config.json").read_text())["num_hidden_layers"] == 2


def test_texts_are_long_enough_and_the_splits_do_not_meet(demo: Demo, tokenizer: Any) -> None:
    calibration, evaluation = lines(demo.calibration), lines(demo.evaluation)
    assert len(calibration) >= 64
    assert min(len(tokenizer(line["text"])["input_ids"]) for line in calibration) >= 256
    assert {split_of(line["title"]) for line in evaluation} == {0}
    assert {0, 1} & {split_of(line["title"]) for line in calibration} == set()
    for part in (calibration, evaluation):
        digests = [hashlib.sha256(line["title"].encode()).hexdigest() for line in part]
        assert digests == sorted(digests)

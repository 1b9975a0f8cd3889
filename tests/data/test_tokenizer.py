"""Only a tokenizer that lies in the folder is loaded."""

import os
from pathlib import Path

import pytest

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.tokenizer import load_tokenizer
from tiny_models import make_tiny_model, make_tiny_tokenizer


def test_a_saved_tokenizer_is_loaded_and_runs_without_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    saved = make_tiny_tokenizer(tmp_path)
    loaded = load_tokenizer(tmp_path)
    text = "the river and the stone"
    assert loaded(text)["input_ids"] == saved(text)["input_ids"]
    assert loaded.chat_template == saved.chat_template
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


def test_a_model_without_tokenizer_is_refused(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, tokenizer=False)
    with pytest.raises(InvalidInput, match=r"spec\.model\.source: must hold a tokenizer, one of"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"version": "1.0"}'])
def test_a_broken_tokenizer_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    make_tiny_model(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InvalidInput, match="tokenizer: transformers must load it") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)

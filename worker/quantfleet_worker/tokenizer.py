"""Loads the tokenizer that lies in a model folder."""

import os
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from quantfleet_api.errors import InvalidInput

_FIELD = "spec.model.source"
_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def load_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer of the folder; nothing is downloaded and no code of it is run."""
    # Ranks are forked and tokenize few texts: threads of the tokenizer would only warn and idle.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # transformers makes an empty tokenizer where there is none, so its presence is checked here.
    if not any((folder / name).is_file() for name in _FILES):
        raise InvalidInput(_FIELD, folder, f"must hold a tokenizer, one of {', '.join(_FILES)}")
    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    # The Rust tokenizer raises plain Exception for a broken file, transformers many kinds.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidInput(f"{_FIELD}: tokenizer", reason, "transformers must load it") from error

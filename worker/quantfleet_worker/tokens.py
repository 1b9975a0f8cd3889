"""Token ids of texts, and what a tokenizer must be able to do.

No special token is added: statistics and perplexity are taken on the texts as they stand. A chat
is rendered by the tokenizer's chat template, which brings the special tokens it wants.
"""

from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.texts import Message, Text

TokenIds = NDArray[np.int32]


class Tokenizer(Protocol):
    """The part of transformers' tokenizers that we use."""

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> Any: ...

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


def token_ids(text: Text, tokenizer: Tokenizer, *, vocab_size: int, field: str) -> TokenIds:
    """Token ids int32 [tokens] of one text; `field` names it in errors."""
    plain = text if isinstance(text, str) else _rendered(text, tokenizer, field=field)
    # Not verbose: a text longer than the tokenizer's limit is cut later, and counted.
    found = tokenizer(plain, add_special_tokens=False, verbose=False)["input_ids"]
    ids = np.asarray(found, dtype=np.int32)
    if ids.size and int(ids.max()) >= vocab_size:
        rule = f"token ids must be below {vocab_size}, the vocab_size of config.json"
        raise InvalidInput(field, int(ids.max()), rule)
    return ids


def _rendered(messages: tuple[Message, ...], tokenizer: Tokenizer, *, field: str) -> str:
    if not getattr(tokenizer, "chat_template", None):
        rule = "the tokenizer must have a chat template to render messages"
        raise InvalidInput(field, "no chat template", rule)
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=False
            )
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidInput(field, reason, "the chat template must accept the messages") from error

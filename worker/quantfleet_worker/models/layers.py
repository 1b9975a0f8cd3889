"""Runnable layers of a family, made of transformers' own classes, with weights given from outside.

Used by the passes (observed, quantized) and by verification. Hides how transformers builds its
masks, positions and attention. Nothing here records gradients.

Shapes: B = samples of a micro-batch, L = tokens (padded on the right), D = hidden size,
V = vocabulary.

Pads need no mask: attention is causal and pads come last, so no valid token ever sees one. What
comes out at a pad's position is finite and meaningless.
"""

import copy
import importlib
import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import CONFIG_MAPPING

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.models.family import Family

_SOURCE = "spec.model.source"
_POSITIONS_KEPT = 8  # tables for the lengths in use; samples of one length are the common case
_MASKS_KEPT = 2  # [L, L] each


class Blocks:
    """Decoder layers, embedding, final norm and head of one model, to be run one at a time."""

    def __init__(self, family: Family, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        """`config` is the checkpoint's config.json, `dtype` that of weights and hidden states."""
        self.family = family
        self.dtype = dtype
        self.config = _config(family, config)
        self.num_layers = int(self.config.num_hidden_layers)
        self._layer_class = _named(family.layer_class)
        self._rotary_class = _named(family.rotary_class)
        self._norm = _on_meta(self._make_norm, dtype)
        self._windows: WeakKeyDictionary[nn.Module, int | None] = WeakKeyDictionary()
        self._positions = lru_cache(maxsize=_POSITIONS_KEPT)(self._make_positions)
        self._mask = lru_cache(maxsize=_MASKS_KEPT)(_make_mask)

    def check_arguments(self) -> None:
        """Preflight: InvalidInput unless the installed classes take just what we know to give."""
        parameters = inspect.signature(self._layer_class.forward).parameters
        unknown = sorted(set(parameters) - {"self"} - self.family.layer_arguments)
        if unknown:
            raise InvalidInput(
                f"{_SOURCE}: {self._layer_class.__name__}.forward",
                ", ".join(unknown),
                f"transformers must take no argument that family {self.family.name} does not know",
            )
        try:
            self._make_positions(1, torch.device("cpu"))
            self.decoder(0)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise _unusable(error) from error

    def decoder(self, index: int) -> nn.Module:
        """Decoder layer `index` with every parameter on the meta device, to be `assign`ed."""
        module = _on_meta(lambda: self._layer_class(self.config, index), self.dtype)
        self._windows[module] = self._window(index)
        return module

    def parameters(self, index: int) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor that decoder layer `index` must be given, by local name."""
        return {n: tuple(p.shape) for n, p in self.decoder(index).named_parameters()}

    def assign(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Makes `tensors` (by local name) the parameters of `module`, without a copy."""
        wanted = {name: parameter.shape for name, parameter in module.named_parameters()}
        assert wanted.keys() == tensors.keys(), sorted(wanted.keys() ^ tensors.keys())
        for name, tensor in tensors.items():
            assert tensor.shape == wanted[name], (name, tensor.shape, wanted[name])
            assert tensor.dtype == self.dtype, (name, tensor.dtype, self.dtype)
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))

    @torch.no_grad()
    def run(self, module: nn.Module, hidden_BLD: Tensor) -> Tensor:
        """The layer's output [B, L, D]; attention is causal, positions count from 0."""
        _, L, _ = hidden_BLD.shape
        positions, rotary = self._positions(L, hidden_BLD.device)
        window = self._windows[module]
        mask = None if window is None or window >= L else self._mask(window, L, hidden_BLD.device)
        output: Tensor = module(
            hidden_BLD,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=rotary,
            use_cache=False,
        )
        return output

    @torch.no_grad()
    def embed(self, weight_VD: Tensor, ids_BL: Tensor) -> Tensor:
        """Hidden states [B, L, D] of token ids (int64)."""
        return nn.functional.embedding(ids_BL, weight_VD)

    @torch.no_grad()
    def final_norm(self, weight_D: Tensor, hidden_BLD: Tensor) -> Tensor:
        """Hidden states [B, L, D] as the head takes them."""
        self.assign(self._norm, {"weight": weight_D})
        output: Tensor = self._norm(hidden_BLD)
        return output

    @torch.no_grad()
    def head(self, weight_VD: Tensor, hidden_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of normed hidden states."""
        return nn.functional.linear(hidden_BLD, weight_VD)

    def _make_norm(self) -> nn.Module:
        norm: nn.Module = _named(self.family.norm_class)(
            self.config.hidden_size, eps=self.config.rms_norm_eps
        )
        return norm

    @torch.no_grad()
    def _make_positions(
        self, length: int, device: torch.device
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Positions [1, L] and the rotary cosines and sines [1, L, head_dim] in the model's dtype.

        The module is made anew for each length: rope types that depend on the length keep state,
        and a rank's result must not depend on what it ran before.
        """
        with torch.device("cpu"):
            rotary = self._rotary_class(self.config).to(device)
        positions_1L = torch.arange(length, device=device).unsqueeze(0)
        like = torch.empty(0, dtype=self.dtype, device=device)
        return positions_1L, rotary(like, positions_1L)

    def _window(self, index: int) -> int | None:
        """Tokens that a query of layer `index` sees, itself included; None for all before it."""
        if self.family.window == "none":
            return None
        if self.family.window == "by_layer":
            sliding = self.config.layer_types[index] == "sliding_attention"
            return int(self.config.sliding_window) if sliding else None
        return None if self.config.sliding_window is None else int(self.config.sliding_window)


def _make_mask(window: int, length: int, device: torch.device) -> Tensor:
    """bool [1, 1, L, L]: true where a query (row) sees a key (column)."""
    tokens_L = torch.arange(length, device=device)
    behind_LL = tokens_L[:, None] - tokens_L[None, :]
    return ((behind_LL >= 0) & (behind_LL < window))[None, None]


def _config(family: Family, config: Mapping[str, Any]) -> Any:
    """transformers' config object; a copy is parsed, because parsing writes into nested values."""
    try:
        parsed = CONFIG_MAPPING[family.name].from_dict(copy.deepcopy(dict(config)))
    except (
        StrictDataclassError,
        ArithmeticError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        raise _unusable(error) from error
    parsed._attn_implementation = "sdpa"
    return parsed


def _unusable(error: Exception) -> InvalidInput:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return InvalidInput(f"{_SOURCE}: config.json", reason, "transformers must accept it")


def _on_meta(make: Any, dtype: torch.dtype) -> nn.Module:
    with torch.device("meta"):
        module: nn.Module = make()
    return module.to(dtype).eval().requires_grad_(False)


def _named(path: str) -> Any:
    """The class that "module:Class" names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)

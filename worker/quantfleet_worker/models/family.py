"""The vocabulary in which a family file describes its architecture.

Read by planning (sites, smoothing pairs, tensor accounting) and by `layers.py` (which modules run).
Names are local to a decoder layer unless said otherwise.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """Where the inverse of a site's smoothing factors goes (see `SmoothingPlan`)."""

    kind: Literal["norm", "rows", "value_rows"]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An input that one or more linears share."""

    name: str  # e.g. "self_attn.qkv_input"
    linears: tuple[str, ...]
    smoothing: Smoothing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model family as transformers implements it and as its checkpoints name it."""

    name: str
    architectures: tuple[str, ...]  # config.json "architectures"
    layer_class: str  # "module:Class" of the decoder layer, called (hidden_states, ...)
    norm_class: str
    rotary_class: str
    layers: str = "model.layers"  # checkpoint prefix of decoder layers
    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    sites: tuple[Site, ...]
    norms: tuple[str, ...]  # local names of the layer's norms, q/k norms included
    fused: tuple[tuple[str, ...], ...]  # linears that servers fuse: one scheme, one input scale
    layer_arguments: frozenset[str]  # arguments of the layer's forward that we know how to give
    dropped: tuple[str, ...] = ()  # regular expressions of source tensors that nothing needs

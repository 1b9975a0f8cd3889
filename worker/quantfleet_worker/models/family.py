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
    window: Literal["none", "all", "by_layer"]  # which layers a sliding window applies to
    dropped: tuple[str, ...] = ()  # regular expressions of source tensors that nothing needs


DENSE_SITES = (
    Site(
        name="self_attn.qkv_input",
        linears=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        smoothing=Smoothing(kind="norm", source="input_layernorm"),
    ),
    Site(
        name="self_attn.o_input",
        linears=("self_attn.o_proj",),
        smoothing=Smoothing(kind="value_rows", source="self_attn.v_proj"),
    ),
    Site(
        name="mlp.gate_up_input",
        linears=("mlp.gate_proj", "mlp.up_proj"),
        smoothing=Smoothing(kind="norm", source="post_attention_layernorm"),
    ),
    Site(
        name="mlp.down_input",
        linears=("mlp.down_proj",),
        smoothing=Smoothing(kind="rows", source="mlp.up_proj"),
    ),
)
"""Sites of a decoder layer with grouped-query attention and a gated MLP, in execution order."""

DENSE_NORMS = ("input_layernorm", "post_attention_layernorm")

DENSE_FUSED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("mlp.gate_proj", "mlp.up_proj"),
)

DENSE_ARGUMENTS = frozenset(
    {
        "hidden_states",
        "attention_mask",
        "position_ids",
        "position_embeddings",
        # Given by their defaults: nothing is generated, so nothing is cached.
        "cache",
        "past_key_values",
        "past_key_value",
        "use_cache",
        "cache_position",
        "kwargs",
    }
)

ROTARY_TABLES = r".*\.rotary_emb\.inv_freq"
"""Old checkpoints store this table; every loader computes it from the config instead."""

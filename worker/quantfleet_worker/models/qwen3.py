"""Qwen3: a norm on each query and key head; head_dim apart from the hidden size."""

from quantfleet_worker.models.family import (
    DENSE_ARGUMENTS,
    DENSE_FUSED,
    DENSE_NORMS,
    DENSE_SITES,
    ROTARY_TABLES,
    Family,
)

FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    layer_class="transformers.models.qwen3.modeling_qwen3:Qwen3DecoderLayer",
    norm_class="transformers.models.qwen3.modeling_qwen3:Qwen3RMSNorm",
    rotary_class="transformers.models.qwen3.modeling_qwen3:Qwen3RotaryEmbedding",
    sites=DENSE_SITES,
    norms=(*DENSE_NORMS, "self_attn.q_norm", "self_attn.k_norm"),
    fused=DENSE_FUSED,
    layer_arguments=DENSE_ARGUMENTS,
    window="by_layer",
    dropped=(ROTARY_TABLES,),
)

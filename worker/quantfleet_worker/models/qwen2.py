"""Qwen2 and Qwen2.5: biases on q, k and v; a sliding window in the layers the config names."""

from quantfleet_worker.models.family import (
    DENSE_ARGUMENTS,
    DENSE_FUSED,
    DENSE_NORMS,
    DENSE_SITES,
    ROTARY_TABLES,
    Family,
)

FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    layer_class="transformers.models.qwen2.modeling_qwen2:Qwen2DecoderLayer",
    norm_class="transformers.models.qwen2.modeling_qwen2:Qwen2RMSNorm",
    rotary_class="transformers.models.qwen2.modeling_qwen2:Qwen2RotaryEmbedding",
    sites=DENSE_SITES,
    norms=DENSE_NORMS,
    fused=DENSE_FUSED,
    layer_arguments=DENSE_ARGUMENTS,
    window="by_layer",
    dropped=(ROTARY_TABLES,),
)

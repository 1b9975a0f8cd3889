"""Llama 2 and 3, SmolLM2 and everything else that keeps their architecture name."""

from quantfleet_worker.models.family import (
    DENSE_ARGUMENTS,
    DENSE_FUSED,
    DENSE_NORMS,
    DENSE_SITES,
    ROTARY_TABLES,
    Family,
)

FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    layer_class="transformers.models.llama.modeling_llama:LlamaDecoderLayer",
    norm_class="transformers.models.llama.modeling_llama:LlamaRMSNorm",
    rotary_class="transformers.models.llama.modeling_llama:LlamaRotaryEmbedding",
    sites=DENSE_SITES,
    norms=DENSE_NORMS,
    fused=DENSE_FUSED,
    layer_arguments=DENSE_ARGUMENTS,
    window="none",
    dropped=(ROTARY_TABLES,),
)

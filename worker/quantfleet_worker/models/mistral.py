"""Mistral: a Llama whose sliding window, where there is one, applies to every layer."""

from quantfleet_worker.models.family import (
    DENSE_ARGUMENTS,
    DENSE_FUSED,
    DENSE_NORMS,
    DENSE_SITES,
    ROTARY_TABLES,
    Family,
)

FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    layer_class="transformers.models.mistral.modeling_mistral:MistralDecoderLayer",
    norm_class="transformers.models.mistral.modeling_mistral:MistralRMSNorm",
    rotary_class="transformers.models.mistral.modeling_mistral:MistralRotaryEmbedding",
    sites=DENSE_SITES,
    norms=DENSE_NORMS,
    fused=DENSE_FUSED,
    layer_arguments=DENSE_ARGUMENTS,
    window="all",
    dropped=(ROTARY_TABLES,),
)

"""The plan: everything that decides the bytes of the output, and nothing else.

`quantfleet_worker.planning` derives it from spec, model and data; the engine, the formats and the
journal read it. It holds nothing that depends on the number of ranks: that is the layout. Its
digest identifies the work: the journal of one plan is never continued by another.
"""

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict

SchemeName = Literal["W8A8", "W8A8Dynamic", "W8A16", "W4A16"]
FormatName = Literal["CompressedTensors", "Ascend"]
StatisticName = Literal["ranges", "histogram", "reservoir", "second_moment"]
DType = Literal["F32", "F16", "BF16", "I8", "U8", "I32", "I64", "BOOL", "F64", "I16"]
"""A dtype as safetensors headers spell it."""


class Frozen(BaseModel):
    """An immutable value; an unknown field is a bug of ours."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GPTQOptions(Frozen):
    """GPTQ (Frantar et al. 2022, section 3): columns a block, dampening, activation order."""

    block_size: int = 128
    dampening: str = "0.01"  # fraction of mean(diag H), a decimal string
    activation_order: bool = True


class WeightScheme(Frozen):
    """How the weight [O, I] of a linear becomes integer codes."""

    bits: Literal[4, 8]
    symmetric: bool
    group_size: int  # columns that share a scale; 0 = one scale a row (channel)
    gptq: GPTQOptions | None = None  # None: round to nearest


class ActivationScheme(Frozen):
    """How the input of a linear becomes int8: one static range, or one a token at run time."""

    kind: Literal["static", "dynamic"]
    symmetric: bool
    observer: Literal["MinMax", "Percentile", "MSE"] = "MinMax"  # static only
    percentile: str = "99.99"  # observer Percentile only


class LinearScheme(Frozen):
    """One scheme, resolved; activations None means they stay in the model's dtype."""

    name: SchemeName
    weights: WeightScheme
    activations: ActivationScheme | None


class TensorMeta(Frozen):
    """A tensor by name; dtype as safetensors spells it."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


class SourceTensor(TensorMeta):
    """A tensor of the source checkpoint and where its bytes lie."""

    file: str  # relative to the model folder
    start: int  # absolute byte offset in the file
    num_bytes: int


class LinearPlan(Frozen):
    """A linear [O, I] that the layer runs; scheme None leaves it in the model's dtype."""

    name: str  # full module name, as the checkpoint spells it, without ".weight"
    local: str  # name inside its layer, e.g. "self_attn.q_proj"
    out_features: int
    in_features: int
    bias: bool
    scheme: LinearScheme | None


class SmoothingPlan(Frozen):
    """Where the inverse of a site's smoothing factors s [I] goes, so the function stays the same.

    `norm`: the norm's weight [I] is divided. `rows`: row j of the source linear (and its bias) is
    divided by s[j]. `value_rows`: the source is a grouped-query v_proj; the query heads that share
    a kv head share factors (`heads_per_group` query heads of `head_dim` channels).
    """

    alpha: str
    kind: Literal["norm", "rows", "value_rows"]
    source: str  # local module name of the norm or linear
    heads_per_group: int = 1
    head_dim: int = 0  # 0 unless value_rows


class SitePlan(Frozen):
    """A named tensor [tokens, I] whose statistics are taken: the input that `linears` share."""

    name: str  # full, e.g. "model.layers.0.self_attn.qkv_input"
    features: int
    linears: tuple[LinearPlan, ...]
    statistics: tuple[StatisticName, ...]  # in the order they travel
    smoothing: SmoothingPlan | None = None


class FilePlan(Frozen):
    """One output file of a layer: its final name and the tensors it holds, in header order."""

    name: str  # relative to the format's folder
    tensors: tuple[TensorMeta, ...]


class LayerPlan(Frozen):
    """The unit that is loaded, observed, solved, written and committed."""

    index: int  # 0 = embedding, 1..L = decoder layers, L + 1 = final norm and head
    name: str  # e.g. "model.layers.0"
    kind: Literal["embedding", "decoder", "head"]
    source: tuple[SourceTensor, ...]
    sites: tuple[SitePlan, ...]
    transformed: tuple[str, ...]  # source tensors changed by a named step (a smoothed norm)
    passed_through: tuple[str, ...]  # source tensors copied byte for byte
    derived: tuple[str, ...]  # output tensors with no source of that name (scales, untied head)
    copies: dict[str, str] = {}  # derived tensor -> source tensor whose bytes it repeats
    files: dict[str, tuple[FilePlan, ...]]  # by format name


class MicroBatch(Frozen):
    """A fixed group of samples; `lengths` in tokens, padded on the right to the longest."""

    samples: tuple[int, ...]
    lengths: tuple[int, ...]


class SampleCount(Frozen):
    """What became of the calibration texts (law L2)."""

    requested: int
    available: int
    used: int
    dropped_short: int
    truncated: int
    tokens_used: int
    tokens_truncated: int
    tokens_dropped: int


class Plan(Frozen):
    """Everything that decides the output's bytes."""

    version: int
    engine: str  # version of the numerics; a change here changes bytes
    model_digest: str  # config, tokenizer, index and every safetensors header
    data_digest: str  # token ids and lengths of all micro-batches; "" without calibration
    recipe_digest: str
    family: str
    model_dtype: Literal["F32", "F16", "BF16"]
    tied_embeddings: bool
    formats: tuple[FormatName, ...]
    propagation: Literal["Float", "Quantized"]
    samples: SampleCount
    micro_batches: tuple[MicroBatch, ...]
    leaves: tuple[tuple[int, int], ...]  # micro-batch range [start, end) of each leaf
    reservoir_rows: int
    chunk_bytes: int  # most bytes of one transfer
    layers: tuple[LayerPlan, ...]
    dropped: tuple[str, ...]  # source tensors left out by name
    copied_files: tuple[str, ...]  # tokenizer, licence, ...: copied byte for byte

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the plan."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

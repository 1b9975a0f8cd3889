"""What the source checkpoint holds, tensor by tensor, against what its architecture needs.

Called by planning before anything is loaded. Law L12 begins here: a tensor that no module takes and
no rule drops is refused by name, and so is a missing one or one of another shape or dtype.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import SourceTensor
from quantfleet_worker.models.family import Family
from quantfleet_worker.models.layers import Blocks
from quantfleet_worker.schemes import TORCH_DTYPES

ModelDType = Literal["F32", "F16", "BF16"]
FIELD = "spec.model.source"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """A checkpoint that is understood in full; names are full checkpoint names."""

    family: Family
    dtype: ModelDType
    tied: bool  # the head is the embedding
    num_layers: int
    hidden_size: int
    head_dim: int
    heads_per_group: int  # query heads that share a kv head
    tensors: Mapping[str, SourceTensor]  # without the dropped ones
    dropped: tuple[str, ...]

    @property
    def embedding_weight(self) -> SourceTensor:
        """The input embedding [V, D]."""
        return self.tensors[f"{self.family.embedding}.weight"]

    @property
    def head_weight(self) -> SourceTensor | None:
        """The head's own weight [V, D]; None where the checkpoint has only the embedding."""
        return self.tensors.get(f"{self.family.head}.weight")

    def layer_name(self, layer: int) -> str:
        """Full name of a decoder layer, counted from 0."""
        return f"{self.family.layers}.{layer}"

    def tensors_of(self, module: str) -> tuple[SourceTensor, ...]:
        """The tensors of a module and of those inside it, by name."""
        prefix = f"{module}."
        return tuple(self.tensors[n] for n in sorted(self.tensors) if n.startswith(prefix))


def account(
    family: Family, config: Mapping[str, Any], tensors: Mapping[str, SourceTensor]
) -> SourceModel:
    """Match the checkpoint's tensors with the architecture's; InvalidInput at the first misfit."""
    dropped = _dropped(family, tensors)
    kept = {name: tensor for name, tensor in tensors.items() if name not in dropped}
    dtype = _model_dtype(family, kept)
    blocks = Blocks(family, config, TORCH_DTYPES[dtype])
    blocks.check_arguments()
    tied = bool(blocks.config.tie_word_embeddings)
    # A tied head may be stored all the same; it is then a tensor like any other.
    needed = _needed(family, blocks, with_head=not tied or f"{family.head}.weight" in kept)
    _check_names(kept, needed)
    _check_tensors(kept, needed, dtype)
    parsed = blocks.config
    heads = parsed.num_attention_heads
    return SourceModel(
        family=family,
        dtype=dtype,
        tied=tied,
        num_layers=blocks.num_layers,
        hidden_size=parsed.hidden_size,
        head_dim=getattr(parsed, "head_dim", None) or parsed.hidden_size // heads,
        heads_per_group=heads // (parsed.num_key_value_heads or heads),
        tensors=kept,
        dropped=dropped,
    )


def _dropped(family: Family, names: Iterable[str]) -> tuple[str, ...]:
    rules = [re.compile(pattern) for pattern in family.dropped]
    return tuple(sorted(n for n in names if any(rule.fullmatch(n) for rule in rules)))


def _model_dtype(family: Family, tensors: Mapping[str, SourceTensor]) -> ModelDType:
    name = f"{family.embedding}.weight"
    if name not in tensors:
        raise InvalidInput(FIELD, name, "must hold this tensor, which the architecture needs")
    for dtype in get_args(ModelDType):
        if tensors[name].dtype == dtype:
            chosen: ModelDType = dtype
            return chosen
    rule = f"must have one of the dtypes {', '.join(get_args(ModelDType))}"
    raise InvalidInput(f"{FIELD}: {name}", tensors[name].dtype, rule)


def _needed(family: Family, blocks: Blocks, *, with_head: bool) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that the architecture takes, by full name."""
    vocabulary = (int(blocks.config.vocab_size), int(blocks.config.hidden_size))
    needed = {
        f"{family.layers}.{index}.{name}": shape
        for index in range(blocks.num_layers)
        for name, shape in blocks.parameters(index).items()
    }
    needed[f"{family.embedding}.weight"] = vocabulary
    needed[f"{family.final_norm}.weight"] = vocabulary[1:]
    if with_head:
        needed[f"{family.head}.weight"] = vocabulary
    return needed


def _check_names(tensors: Iterable[str], needed: Iterable[str]) -> None:
    missing = sorted(set(needed) - set(tensors))
    if missing:
        rule = f"must hold this tensor, which the architecture needs{_and_more(missing)}"
        raise InvalidInput(FIELD, missing[0], rule)
    left = sorted(set(tensors) - set(needed))
    if left:
        rule = f"must hold no tensor that the architecture does not know{_and_more(left)}"
        raise InvalidInput(FIELD, left[0], rule)


def _and_more(names: list[str]) -> str:
    return f" ({len(names)} in all)" if len(names) > 1 else ""


def _check_tensors(
    tensors: Mapping[str, SourceTensor], needed: Mapping[str, tuple[int, ...]], dtype: ModelDType
) -> None:
    for name, shape in sorted(needed.items()):
        if tensors[name].shape != shape:
            rule = f"must have the shape {list(shape)} that config.json implies"
            raise InvalidInput(f"{FIELD}: {name}", list(tensors[name].shape), rule)
        if tensors[name].dtype != dtype:
            rule = f"must have dtype {dtype} like the embedding"
            raise InvalidInput(f"{FIELD}: {name}", tensors[name].dtype, rule)

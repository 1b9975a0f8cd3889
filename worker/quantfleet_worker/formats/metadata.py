"""The JSON files beside the tensors that formats have in common."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quantfleet_api.plan import FilePlan, LinearPlan, Plan
from quantfleet_worker.formats.safetensors_file import index_json


def linears_of(plan: Plan) -> tuple[LinearPlan, ...]:
    """Every linear of the plan, float ones included, in layer order."""
    return tuple(linear for layer in plan.layers for site in layer.sites for linear in site.linears)


def config_json(
    plan: Plan, config: Mapping[str, Any], quantization_config: Mapping[str, Any] | None
) -> bytes:
    """The source's config.json, its keys in their order, but for what quantization changes.

    An earlier quantization_config goes, also from nested text configs. A quantized head is no
    longer the embedding, so it is untied.
    """
    changed = _without_quantization(config)
    head = [layer for layer in plan.layers if layer.kind == "head"]
    if any(x.scheme is not None for layer in head for site in layer.sites for x in site.linears):
        changed["tie_word_embeddings"] = False
    if quantization_config is not None:
        changed["quantization_config"] = dict(quantization_config)
    return (json.dumps(changed, indent=2) + "\n").encode()


def with_index(
    files: dict[str, bytes], index_name: str, tensor_files: Sequence[FilePlan]
) -> dict[str, bytes]:
    """`files`, and the index where there are several tensor files."""
    return files | ({index_name: index_json(tensor_files)} if len(tensor_files) > 1 else {})


def _without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_quantization(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key != "quantization_config"
    }

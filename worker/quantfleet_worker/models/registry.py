"""Which family a config.json belongs to; refuses what no family describes.

Called by planning before anything else is loaded: it imports neither torch nor transformers.
"""

from collections.abc import Mapping
from typing import Any

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.models import llama, mistral, qwen2, qwen3
from quantfleet_worker.models.family import Family

FAMILIES: tuple[Family, ...] = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY)

_SOURCE = "spec.model.source"
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_DEFAULT_WINDOW = 4096  # what transformers takes where a config with windows gives no width
_FULL, _SLIDING = "full_attention", "sliding_attention"


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a checkpoint's config.json; InvalidInput where we cannot run it faithfully."""
    family = _by_architecture(config.get("architectures"))
    _require(
        config, "model_type", config.get("model_type") == family.name, f"must be {family.name}"
    )
    _require(
        config,
        "quantization_config",
        not config.get("quantization_config"),
        "must be absent: the source must not be quantized already",
    )
    for key in _EXPERT_COUNTS:
        _require(config, key, not config.get(key), "must be absent: experts are not supported")
    custom = config.get("auto_map") or {}
    _require(
        config,
        "auto_map",
        not any(name.startswith("AutoModel") for name in custom),
        "must not name model code: only architectures of transformers run",
    )
    _check_windows(family, config)
    return family


def _by_architecture(architectures: object) -> Family:
    names = architectures if isinstance(architectures, list) else [architectures]
    known = {name: family for family in FAMILIES for name in family.architectures}
    if len(names) == 1 and isinstance(names[0], str) and names[0] in known:
        return known[names[0]]
    shown = ", ".join(str(name) for name in names)
    raise InvalidInput(_SOURCE, shown, f"architecture must be one of {', '.join(sorted(known))}")


def _check_windows(family: Family, config: Mapping[str, Any]) -> None:
    """Refuses windows that transformers would read otherwise than the config says."""
    window = config.get("sliding_window", None if family.window == "none" else _DEFAULT_WINDOW)
    if family.window == "by_layer" and not config.get("use_sliding_window", False):
        window = None
    if family.window == "none":
        _require(config, "sliding_window", window is None, f"must be null for {family.name}")
    whole = isinstance(window, int) and not isinstance(window, bool) and window > 0
    _require(config, "sliding_window", window is None or whole, "must be null or a positive number")
    types = config.get("layer_types")
    if types is None:
        return
    allowed = {_FULL} if window is None else {_SLIDING}
    if family.window == "by_layer" and window is not None:
        allowed = {_FULL, _SLIDING}
    _require(
        config,
        "layer_types",
        isinstance(types, list)
        and len(types) == config.get("num_hidden_layers")
        and all(kind in allowed for kind in types),
        f"must give each layer one of {', '.join(sorted(allowed))}",
    )


def _require(config: Mapping[str, Any], key: str, holds: bool, rule: str) -> None:
    if not holds:
        raise InvalidInput(f"{_SOURCE}: config.json: {key}", config.get(key), rule)

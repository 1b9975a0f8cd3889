"""The quantization_config of a compressed-tensors checkpoint: which linear has which scheme.

Linears of equal scheme form a config group. With one group its target is the class "Linear" and
everything left in float is ignored by name. With several, no group may use the class: vLLM looks
for a linear's class before it looks into the linears that it fused, so a class target would win
over the name of a fused part. Names are then exact, or one regular expression for the same linears
of several layers.

Zero points are packed, as servers read them. transformers builds unpacked ones where it keeps
weights coded until the first forward pass, and packed ones do not fit there; with `dequantize` it
decodes while loading, which they do fit. Other readers do not know that key. It takes all linears
for those of the first group, so packed zero points and several groups do not go together.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from quantfleet_api.plan import LinearScheme, Plan
from quantfleet_worker.formats.metadata import linears_of

_HEAD = "lm_head"  # a linear of every model, in no plan when it is the tied embedding


def quantization_config(plan: Plan) -> dict[str, Any] | None:
    """The value of the key of that name in config.json; None where nothing is quantized."""
    linears = linears_of(plan)
    groups: list[tuple[dict[str, Any], list[str]]] = []
    for linear in linears:
        if linear.scheme is None:
            continue
        arguments = _arguments(linear.scheme)
        members = next((names for found, names in groups if found == arguments), None)
        if members is None:
            groups.append((arguments, members := []))
        members.append(linear.name)
    if not groups:
        return None
    everything = [linear.name for linear in linears]
    ignored = [linear.name for linear in linears if linear.scheme is None]
    if plan.tied_embeddings and _HEAD not in everything:
        ignored.append(_HEAD)
    formats = sorted({arguments["format"] for arguments, _ in groups})
    packed_zero_points = any(not found["weights"]["symmetric"] for found, _ in groups)
    return {
        "config_groups": {
            f"group_{i}": {
                "targets": ["Linear"] if len(groups) == 1 else name_patterns(names, everything),
                **arguments,
            }
            for i, (arguments, names) in enumerate(groups)
        },
        **({"dequantize": True} if packed_zero_points else {}),
        "format": formats[0] if len(formats) == 1 else "mixed-precision",
        "global_compression_ratio": None,
        "ignore": name_patterns(ignored, everything),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def mixture_refusal(schemes: Collection[LinearScheme]) -> str | None:
    """Why no loader takes linears of these schemes in one model, or None where one does."""
    several = any(
        _arguments(scheme) != _arguments(other) for scheme in schemes for other in schemes
    )
    if several and not all(scheme.weights.symmetric for scheme in schemes):
        return "transformers loads asymmetric weights only where all linears have the same scheme"
    return None


def name_patterns(names: Sequence[str], everything: Iterable[str]) -> list[str]:
    """Targets that match `names` and no other name of `everything`.

    Names that differ only in their numbers are one family ("model.layers.#.mlp.down_proj").
    Families that occur with the same numbers share a pattern: `\\d+` where it is all of a family,
    else the numbers themselves; a single name stays as it is.
    """
    universe: dict[str, set[tuple[str, ...]]] = {}
    for name in everything:
        universe.setdefault(_family(name), set()).add(_numbers(name))
    chosen: dict[str, dict[tuple[str, ...], None]] = {}
    for name in names:
        chosen.setdefault(_family(name), {})[_numbers(name)] = None
    merged: dict[tuple[str, str], list[str]] = {}
    patterns: list[str] = []
    for family, numbers in chosen.items():
        if len(numbers) == 1 or family.count("#") != 1:
            patterns += [_with_numbers(family, n) for n in numbers]
            continue
        complete = set(numbers) == universe.get(family)
        counter = r"\d+" if complete else f"({'|'.join(n for (n,) in numbers)})"
        stem, _, leaf = family.rpartition("#")
        merged.setdefault((stem, counter), []).append(leaf)
    for (stem, counter), leaves in merged.items():
        tail = re.escape(leaves[0]) if len(leaves) == 1 else f"({'|'.join(map(re.escape, leaves))})"
        patterns.append(f"re:{re.escape(stem)}{counter}{tail}$")
    return patterns


def _family(name: str) -> str:
    return ".".join("#" if part.isdecimal() else part for part in name.split("."))


def _numbers(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split(".") if part.isdecimal())


def _with_numbers(family: str, numbers: tuple[str, ...]) -> str:
    left = iter(numbers)
    return ".".join(next(left) if part == "#" else part for part in family.split("."))


def _arguments(scheme: LinearScheme) -> dict[str, Any]:
    """A config group without its targets: only what loaders read, nothing of how it was found."""
    weights, activations = scheme.weights, scheme.activations
    return {
        "format": "pack-quantized" if activations is None else "int-quantized",
        "input_activations": None
        if activations is None
        else _tensor_arguments(
            bits=8,
            symmetric=activations.symmetric,
            strategy="tensor" if activations.kind == "static" else "token",
            dynamic=activations.kind == "dynamic",
        ),
        "output_activations": None,
        "weights": _tensor_arguments(
            bits=weights.bits,
            symmetric=weights.symmetric,
            strategy="group" if weights.group_size else "channel",
            group_size=weights.group_size or None,
        ),
    }


def _tensor_arguments(
    *,
    bits: int,
    symmetric: bool,
    strategy: str,
    dynamic: bool = False,
    group_size: int | None = None,
) -> dict[str, Any]:
    return {
        "dynamic": dynamic,
        "group_size": group_size,
        "num_bits": bits,
        "strategy": strategy,
        "symmetric": symmetric,
        "type": "int",
    }

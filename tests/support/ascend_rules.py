"""Every rule that a server which loads the Ascend format relies on, one function a rule.

Each returns the violations it finds, one line each; `violations` runs all. Written from the rules
of the loader, with no code of what writes the folder.
"""

import re
from collections.abc import Callable, Iterator, Mapping

import torch

from ascend_reader import AscendFolder

LINEAR_TYPES = {"W8A8", "W8A8_DYNAMIC", "W8A16"}
_RISING = ("FLOAT", "W8A16", "W8A8_DYNAMIC", "W8A8")
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_SETTINGS = {"version", "model_quant_type", "metadata", "group_size", "optional"}
_CACHE_SETTINGS = {"kv_cache_type", "kv_quant_type"}


def config_has_no_quantization(folder: AscendFolder) -> list[str]:
    """The method is detected by the description; a quantization_config would win over it."""
    places = {"config": folder.config} | {
        key: value for key, value in folder.config.items() if isinstance(value, dict)
    }
    return [
        f"{place} has quantization_config"
        for place, v in places.items()
        if "quantization_config" in v
    ]


def every_tensor_is_described(folder: AscendFolder) -> list[str]:
    """A lookup of a parameter that is not described is a KeyError in the server."""
    named = set(folder.description) - _SETTINGS - _CACHE_SETTINGS
    return [f"{x} is not described" for x in sorted(set(folder.tensors) - named)] + [
        f"{x} is described but in no file" for x in sorted(named - set(folder.tensors))
    ]


def head_and_embedding_are_described(folder: AscendFolder) -> list[str]:
    """Also when they are one tensor: the server asks for both."""
    wanted = ("lm_head.weight", "model.embed_tokens.weight")
    return [f"{name} is not described" for name in wanted if name not in folder.description]


def types_are_registered(folder: AscendFolder) -> list[str]:
    """A dense linear has a registered type; experts have others."""
    return [
        f"{name} has type {kind}"
        for name, kind in _described(folder)
        if kind not in LINEAR_TYPES | {"FLOAT"}
    ]


def a_linear_has_one_type(folder: AscendFolder) -> list[str]:
    """All tensors of a quantized linear say its type, its bias says FLOAT."""
    wrong = []
    for name, kind in _described(folder):
        module, _, leaf = name.rpartition(".")
        expected = folder.description.get(f"{module}.weight")
        if leaf == "bias":
            expected = "FLOAT"
        if kind != expected:
            wrong.append(f"{name} is {kind}, not {expected}")
    return wrong


def fused_linears_share_a_type(folder: AscendFolder) -> list[str]:
    """q/k/v and gate/up become one module with one type."""
    wrong = []
    for modules in _fused(folder):
        kinds = {folder.description.get(f"{module}.weight") for module in modules}
        if len(kinds) > 1:
            wrong.append(f"{modules} have types {sorted(map(str, kinds))}")
    return wrong


def fused_linears_share_input_parameters(folder: AscendFolder) -> list[str]:
    """They load into one parameter, so the last one would win."""
    wrong = []
    for modules in _fused(folder):
        for leaf in ("input_scale", "input_offset"):
            found = [folder.tensors.get(f"{module}.{leaf}") for module in modules]
            values = {None if x is None else tuple(x.tolist()) for x in found}
            if len(values) > 1:
                wrong.append(f"{modules} have {leaf} {values}")
    return wrong


def static_linears_have_their_tensors(folder: AscendFolder) -> list[str]:
    """W8A8: dtypes and shapes; deq_scale's dtype follows the model's."""
    is_bfloat16 = folder.config.get("dtype", folder.config.get("torch_dtype")) == "bfloat16"
    wrong = []
    for module in _modules(folder, "W8A8"):
        O, I = folder.tensors[f"{module}.weight"].shape  # noqa: E741
        wanted = {
            "weight": (torch.int8, (O, I)),
            "input_scale": (torch.float32, (1,)),
            "input_offset": (torch.float32, (1,)),
            "quant_bias": (torch.int32, (O,)),
            "deq_scale": (torch.float32 if is_bfloat16 else torch.int64, (O,)),
        }
        wrong += _shape_violations(folder, module, wanted)
    return wrong


def row_scaled_linears_have_their_tensors(folder: AscendFolder) -> list[str]:
    """W8A8_DYNAMIC and W8A16: one scale and one offset a row."""
    wrong = []
    for module in [*_modules(folder, "W8A8_DYNAMIC"), *_modules(folder, "W8A16")]:
        O, I = folder.tensors[f"{module}.weight"].shape  # noqa: E741
        wanted = {
            "weight": (torch.int8, (O, I)),
            "weight_scale": (torch.float32, (O, 1)),
            "weight_offset": (torch.float32, (O, 1)),
        }
        wrong += _shape_violations(folder, module, wanted)
    return wrong


def input_offsets_are_int8(folder: AscendFolder) -> list[str]:
    """The float32 offset is copied into an int8 parameter."""
    return [
        f"{name} is {value}"
        for name, tensor in _leaves(folder, "input_offset")
        for value in tensor.tolist()
        if value != round(value) or not -128 <= value <= 127
    ]


def weight_offsets_are_zero(folder: AscendFolder) -> list[str]:
    """Symmetric weights: readers differ in the sign of an offset."""
    return [f"{name} is not zero" for name, t in _leaves(folder, "weight_offset") if bool(t.any())]


def scales_are_positive(folder: AscendFolder) -> list[str]:
    """A scale of zero, infinity or NaN makes the whole output of the model NaN."""
    wrong = []
    for leaf in ("input_scale", "weight_scale", "deq_scale"):
        for name, tensor in _leaves(folder, leaf):
            value = (
                tensor
                if tensor.dtype == torch.float32
                else tensor.to(torch.int32).view(torch.float32)
            )
            if not bool(((value > 0) & value.isfinite()).all()):
                wrong.append(f"{name} is not positive and finite")
            if tensor.dtype == torch.int64 and bool((tensor >> 32).any()):
                wrong.append(f"{name} holds more than 32 bits")
    return wrong


def group_size_is_absent(folder: AscendFolder) -> list[str]:
    """One scale a row is written as group size 0 or less, or not at all."""
    size = folder.description.get("group_size", 0)
    return [f"group_size is {size}"] if size > 0 else []


def model_type_is_the_highest(folder: AscendFolder) -> list[str]:
    """model_quant_type names the highest type used, whatever the order of the layers."""
    used = [kind for _, kind in _described(folder) if kind in _RISING]
    highest = max(used, key=_RISING.index, default="FLOAT")
    found = folder.description.get("model_quant_type")
    return [] if found == highest else [f"model_quant_type is {found}, not {highest}"]


def cache_scales_need_their_setting(folder: AscendFolder) -> list[str]:
    """Scales of a quantized cache are read where kv_cache_type says C8, and there only."""
    has_scales = any(name.endswith(".kv_cache_scale") for name in folder.tensors)
    says_so = folder.description.get("kv_cache_type") == "C8"
    return [] if has_scales == says_so else ["kv_cache_type and kv_cache_scale tensors disagree"]


def files_are_named_and_indexed(folder: AscendFolder) -> list[str]:
    """One quant_model_weights file, or numbered ones and an index of all tensors."""
    files = sorted(set(folder.holders.values()))
    if folder.index is None:
        single = ["quant_model_weights.safetensors"]
        return [] if files == single else [f"no index, but files {files}"]
    count = len(files)
    expected = [f"quant_model_weights-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    wrong = [] if files == expected else [f"files are {files}, not {expected}"]
    if folder.index["weight_map"] != folder.holders:
        wrong.append("weight_map does not say where the tensors are")
    size = sum(tensor.nbytes for tensor in folder.tensors.values())
    if folder.index["metadata"]["total_size"] != size:
        wrong.append(f"total_size is not {size}")
    return wrong


def float_tensors_are_float(folder: AscendFolder) -> list[str]:
    """Norms, embeddings, biases and linears left alone; integers would be loaded as values."""
    return [
        f"{name} is FLOAT but {folder.tensors[name].dtype}"
        for name, kind in _described(folder)
        if kind == "FLOAT"
        and name in folder.tensors
        and not folder.tensors[name].is_floating_point()
    ]


RULES: tuple[Callable[[AscendFolder], list[str]], ...] = (
    config_has_no_quantization,
    every_tensor_is_described,
    head_and_embedding_are_described,
    types_are_registered,
    a_linear_has_one_type,
    fused_linears_share_a_type,
    fused_linears_share_input_parameters,
    static_linears_have_their_tensors,
    row_scaled_linears_have_their_tensors,
    input_offsets_are_int8,
    weight_offsets_are_zero,
    scales_are_positive,
    group_size_is_absent,
    model_type_is_the_highest,
    cache_scales_need_their_setting,
    files_are_named_and_indexed,
    float_tensors_are_float,
)


def violations(folder: AscendFolder) -> list[str]:
    """What any rule finds, with the rule's name."""
    return [f"{rule.__name__}: {line}" for rule in RULES for line in rule(folder)]


def _described(folder: AscendFolder) -> Iterator[tuple[str, str]]:
    ignored = _SETTINGS | _CACHE_SETTINGS
    return ((name, kind) for name, kind in folder.description.items() if name not in ignored)


def _modules(folder: AscendFolder, kind: str) -> list[str]:
    return [
        name.removesuffix(".weight")
        for name, found in _described(folder)
        if found == kind and name.endswith(".weight") and name in folder.tensors
    ]


def _leaves(folder: AscendFolder, leaf: str) -> list[tuple[str, torch.Tensor]]:
    return [(name, t) for name, t in folder.tensors.items() if name.endswith(f".{leaf}")]


def _fused(folder: AscendFolder) -> list[list[str]]:
    groups: dict[tuple[str, int], list[str]] = {}
    for name in folder.tensors:
        match = re.fullmatch(r"(.+)\.(\w+)\.weight", name)
        for number, leaves in enumerate(_FUSED):
            if match and match[2] in leaves:
                groups.setdefault((match[1], number), []).append(f"{match[1]}.{match[2]}")
    return list(groups.values())


def _shape_violations(
    folder: AscendFolder, module: str, wanted: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> list[str]:
    wrong = []
    for leaf, expected in wanted.items():
        tensor = folder.tensors.get(f"{module}.{leaf}")
        found = None if tensor is None else (tensor.dtype, tuple(tensor.shape))
        if found != expected:
            wrong.append(f"{module}.{leaf} is {found}, not {expected}")
    return wrong

"""Reads an Ascend folder by the written formulas and rebuilds the float linears it stands for.

Independent on purpose: it shares no code with what writes the folder. O = out features, I = in
features.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor


@dataclass(frozen=True)
class AscendFolder:
    """All that a loader sees; `holders` is the file that holds each tensor."""

    files: tuple[str, ...]
    config: dict[str, Any]
    description: dict[str, Any]
    index: dict[str, Any] | None
    tensors: dict[str, Tensor]
    holders: dict[str, str]


@dataclass(frozen=True)
class RebuiltLinear:
    """weight [O, I] and bias [O] in float32; the input is coded as round(x / scale + offset).

    input_scale None: not quantized by a static scale.
    """

    kind: str
    weight: Tensor
    bias: Tensor | None
    input_scale: float | None = None
    input_offset: float = 0.0


def read_ascend(folder: Path) -> AscendFolder:
    """Reads every file of the folder."""
    tensors, holders = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                tensors[name], holders[name] = file.get_tensor(name), path.name
    index = folder / "quant_model_weights.safetensors.index.json"
    return AscendFolder(
        files=tuple(sorted(path.name for path in folder.iterdir())),
        config=json.loads((folder / "config.json").read_text()),
        description=json.loads((folder / "quant_model_description.json").read_text()),
        index=json.loads(index.read_text()) if index.exists() else None,
        tensors=tensors,
        holders=holders,
    )


def rebuild_linears(folder: AscendFolder) -> dict[str, RebuiltLinear]:
    """Every quantized linear, by module name."""
    rebuilt = {}
    for key, kind in folder.description.items():
        if key.endswith(".weight") and kind != "FLOAT":
            name = key.removesuffix(".weight")
            own = {
                full.removeprefix(f"{name}."): tensor
                for full, tensor in folder.tensors.items()
                if full.startswith(f"{name}.")
            }
            rebuilt[name] = _static(own) if kind == "W8A8" else _by_row(own, kind)
    return rebuilt


def _by_row(own: dict[str, Tensor], kind: str) -> RebuiltLinear:
    weight = (own["weight"].to(torch.float32) - own["weight_offset"]) * own["weight_scale"]
    return RebuiltLinear(kind, weight, own.get("bias"))


def _static(own: dict[str, Tensor]) -> RebuiltLinear:
    deq_scale = own["deq_scale"]
    if deq_scale.dtype == torch.int64:
        raw = b"".join(int(bits).to_bytes(4, "little") for bits in deq_scale.tolist())
        deq_scale = torch.frombuffer(bytearray(raw), dtype=torch.float32)
    scale, offset = float(own["input_scale"]), float(own["input_offset"])
    q = own["weight"].to(torch.float64)
    weight = q * deq_scale.double()[:, None] / scale
    bias = (own["quant_bias"].double() + offset * q.sum(dim=1)) * deq_scale.double()
    return RebuiltLinear("W8A8", weight.float(), bias.float(), scale, offset)

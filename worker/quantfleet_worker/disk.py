"""How much disk a run needs where its output goes, as a sum. Called by preflight and `plan`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from quantfleet_api.plan import FormatName, LayerPlan, LinearPlan, Plan
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.formats.safetensors_file import file_size
from quantfleet_worker.headers import DTYPE_BYTES
from quantfleet_worker.memory_items import hidden_size
from quantfleet_worker.schemes import QuantizedLinear

_SMALL_FILES = 1 << 20
"""config.json, indexes, digest manifest, journal: generously, beside what a tensor name costs."""
_BYTES_A_NAME = 400  # of a tensor in index, description and journal together


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskItem:
    """One summand; `name` says what it is, for people."""

    name: str
    num_bytes: int


def disk_sum(
    plan: Plan, *, model_folder: Path, with_activations: bool = True
) -> tuple[DiskItem, ...]:
    """What lies on the output's file system when a run needs most; empty items are left out."""
    activations = 2 * activation_bytes(plan) if with_activations else 0
    items = [
        *(
            DiskItem(name=f"weights as {name}", num_bytes=output_bytes(plan, name))
            for name in plan.formats
        ),
        DiskItem(
            name="copied files",
            num_bytes=len(plan.formats) * copied_bytes(plan.copied_files, model_folder),
        ),
        DiskItem(name="activations, two layers of them", num_bytes=activations),
        DiskItem(name="what the first format loses", num_bytes=sidecar_bytes(plan)),
        DiskItem(name="indexes, configs, journal", num_bytes=_small_files(plan)),
    ]
    return tuple(item for item in items if item.num_bytes)


def total_disk_bytes(items: Iterable[DiskItem]) -> int:
    """The sum itself."""
    return sum(item.num_bytes for item in items)


def output_bytes(plan: Plan, name: FormatName) -> int:
    """Tensor files of one format, exactly."""
    return sum(file_size(file) for layer in plan.layers for file in layer.files[name])


def copied_bytes(files: Iterable[str], folder: Path) -> int:
    """Tokenizer, licence and the like."""
    return sum((folder / name).stat().st_size for name in files)


def activation_bytes(plan: Plan) -> int:
    """Hidden states after one layer, of all micro-batches; a new set is written beside the old."""
    rows = sum(len(batch.lengths) * max(batch.lengths) for batch in plan.micro_batches)
    return rows * hidden_size(plan) * DTYPE_BYTES[plan.model_dtype]


def sidecar_bytes(plan: Plan) -> int:
    """What the journal keeps because the first format cannot round-trip it."""
    return sum(_sidecar_bytes(plan, linear) for linear in _quantized_linears(plan.layers))


def _sidecar_bytes(plan: Plan, linear: LinearPlan) -> int:
    assert linear.scheme is not None
    group_size = linear.scheme.weights.group_size or linear.in_features
    scales = (linear.out_features, linear.in_features // group_size)
    shapes_only = QuantizedLinear(
        codes=torch.empty(linear.out_features, linear.in_features, dtype=torch.int8, device="meta"),
        scale=torch.empty(scales, device="meta"),
        zero_point=torch.empty(scales, dtype=torch.int8, device="meta"),
    )
    kept = FORMATS[plan.formats[0]].sidecar(linear, shapes_only)
    return sum(tensor.numel() * tensor.dtype.itemsize for tensor in kept.values())


def _quantized_linears(layers: Iterable[LayerPlan]) -> list[LinearPlan]:
    return [
        linear
        for layer in layers
        for site in layer.sites
        for linear in site.linears
        if linear.scheme is not None
    ]


def _small_files(plan: Plan) -> int:
    names = sum(
        len(file.tensors)
        for layer in plan.layers
        for files in layer.files.values()
        for file in files
    )
    return _SMALL_FILES + names * _BYTES_A_NAME

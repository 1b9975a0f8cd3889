"""From results to tensors: the quantized linears of a layer, and everything its files hold. Pure.

Called by `layer_steps.py` after the exchange of results, and on resume with what files held. Names
are full checkpoint names.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quantfleet_api.plan import DType, FilePlan, LayerPlan, LinearPlan
from quantfleet_worker.formats import Format, assert_shared_input
from quantfleet_worker.schedule import LayerLayout
from quantfleet_worker.schemes import QuantizedLinear, dequantized_weight
from quantfleet_worker.solve import SiteSolution, TaskSolution, row_divisors


def quantized_linears(
    layer: LayerPlan,
    own: LayerLayout,
    results: Sequence[TaskSolution],
    solutions: Mapping[int, SiteSolution],
    source: Mapping[str, Tensor],
) -> dict[str, QuantizedLinear]:
    """Join the tasks' rows; biases are smoothed like the rows they belong to."""
    divisors = row_divisors(layer, solutions)
    linears: dict[str, QuantizedLinear] = {}
    for site_index, site in enumerate(layer.sites):
        for linear_index, linear in enumerate(site.linears):
            if linear.scheme is None:
                continue
            parts = [
                result
                for task, result in zip(own.tasks, results, strict=True)
                if (task.site, task.linear) == (site_index, linear_index)
            ]
            zero_points = [part.zero_point for part in parts if part.zero_point is not None]
            static = linear.scheme.activations and linear.scheme.activations.kind == "static"
            solution = solutions[site_index]
            linears[linear.name] = QuantizedLinear(
                codes=torch.cat([part.codes for part in parts]),
                scale=torch.cat([part.scale for part in parts]),
                zero_point=torch.cat(zero_points) if zero_points else None,
                bias=_smoothed_bias(linear, divisors.get(linear.local), source),
                input_scale=solution.input_scale if static else None,
                input_zero_point=solution.input_zero_point if static else None,
            )
        assert_shared_input(site, linears)
    return linears


def summed_errors(
    layer: LayerPlan, own: LayerLayout, results: Sequence[TaskSolution]
) -> dict[str, tuple[float, float]]:
    """Squared error and squared size of each quantized linear's output, over its tasks."""
    errors = {linear.name: (0.0, 0.0) for linear in linears_of(layer)}
    for task, result in zip(own.tasks, results, strict=True):
        name = layer.sites[task.site].linears[task.linear].name
        error, reference = errors[name]
        errors[name] = (error + result.error, reference + result.reference)
    return errors


def _smoothed_bias(
    linear: LinearPlan, divisor_O: Tensor | None, source: Mapping[str, Tensor]
) -> Tensor | None:
    if not linear.bias:
        return None
    bias_O = source[f"{linear.name}.bias"].to(torch.float32)
    return bias_O if divisor_O is None else bias_O / divisor_O


def float_tensors(
    layer: LayerPlan, solutions: Mapping[int, SiteSolution], source: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Every source tensor that stays float, in its own dtype: smoothed where a step says so.

    A tensor that no step changes is the source's own, byte for byte.
    """
    quantized = {
        f"{linear.name}.{part}"
        for site in layer.sites
        for linear in site.linears
        if linear.scheme is not None
        for part in ("weight", "bias")
    }
    tensors = {name: tensor for name, tensor in source.items() if name not in quantized}
    divisors = row_divisors(layer, solutions)
    columns = {
        linear.local: solutions[index].factors
        for index, site in enumerate(layer.sites)
        for linear in site.linears
    }
    for name in layer.transformed:
        local, _, part = name.removeprefix(f"{layer.name}.").rpartition(".")
        tensor = source[name].to(torch.float32)
        factors, divisor = columns.get(local), divisors.get(local)
        if part == "weight" and tensor.ndim == 2 and factors is not None:
            tensor = tensor * factors
        if divisor is not None:
            tensor = tensor / (divisor if tensor.ndim == 1 else divisor.reshape(-1, 1))
        tensors[name] = tensor.to(source[name].dtype)
    return tensors


def encoded_tensors(
    format: Format, layer: LayerPlan, quantized: Mapping[str, QuantizedLinear], model_dtype: DType
) -> dict[str, Tensor]:
    """The tensors of all quantized linears in one format."""
    tensors: dict[str, Tensor] = {}
    for linear in linears_of(layer):
        tensors |= format.encode(linear, quantized[linear.name], model_dtype)
    return tensors


def sidecar_tensors(
    format: Format, layer: LayerPlan, quantized: Mapping[str, QuantizedLinear]
) -> dict[str, Tensor]:
    """What the format cannot round-trip."""
    tensors: dict[str, Tensor] = {}
    for linear in linears_of(layer):
        tensors |= format.sidecar(linear, quantized[linear.name])
    return tensors


def decoded_linears(
    format: Format,
    layer: LayerPlan,
    tensors: Mapping[str, Tensor],
    sidecar: Mapping[str, Tensor],
    model_dtype: DType,
) -> dict[str, QuantizedLinear]:
    """The linears that a server would compute with, from what the files hold."""
    return {
        linear.name: format.decode(linear, tensors, sidecar, model_dtype)
        for linear in linears_of(layer)
    }


def linears_of(layer: LayerPlan) -> list[LinearPlan]:
    """The layer's quantized linears in plan order."""
    return [linear for site in layer.sites for linear in site.linears if linear.scheme is not None]


def module_parameters(
    layer: LayerPlan,
    floats: Mapping[str, Tensor],
    decoded: Mapping[str, QuantizedLinear],
    dtype: torch.dtype,
    *,
    device: torch.device,
) -> dict[str, Tensor]:
    """Parameters of the layer that runs in the quantized pass, by local name."""
    parameters = {
        local_name(layer, name): tensor.to(device, dtype) for name, tensor in floats.items()
    }
    for linear in linears_of(layer):
        quantized = decoded[linear.name]
        parameters[f"{linear.local}.weight"] = dequantized_weight(quantized).to(device, dtype)
        if quantized.bias is not None:
            parameters[f"{linear.local}.bias"] = quantized.bias.to(device, dtype)
    return parameters


def local_name(layer: LayerPlan, name: str) -> str:
    """A tensor's name inside its layer's module."""
    return name.removeprefix(f"{layer.name}.")


def of_file(file: FilePlan, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that one file holds."""
    return {meta.name: tensors[meta.name] for meta in file.tensors}

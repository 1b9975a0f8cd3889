"""The model that a published folder stands for, by our own decoding: a plain transformers model.

Weights are the decoded ones and inputs are fake-quantized by the functions of the engine's
quantized pass, so it is the model that was calibrated and measured.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from quantfleet_api.plan import LinearPlan, Plan
from quantfleet_worker import assembly, passes
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.schemes import TORCH_DTYPES, QuantizedLinear, dequantized_weight

TOKENS = torch.randint(3, 500, (2, 24), generator=torch.Generator().manual_seed(5))


def published_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of one format's folder."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found = load_file(path)
        assert not found.keys() & tensors.keys(), f"{path}: tensors are in one file only"
        tensors |= found
    return tensors


def quantized_linears(plan: Plan) -> dict[str, LinearPlan]:
    """Every quantized linear of a plan by full name."""
    return {x.name: x for layer in plan.layers for x in assembly.linears_of(layer)}


def decoded_linears(plan: Plan, tensors: dict[str, Tensor]) -> dict[str, QuantizedLinear]:
    """What the tensors of a compressed-tensors folder mean, by full name."""
    decode = FORMATS["CompressedTensors"].decode
    return {
        name: decode(linear, tensors, {}, plan.model_dtype)
        for name, linear in quantized_linears(plan).items()
    }


@contextmanager
def decoded_model(source: Path, plan: Plan, folder: Path) -> Iterator[Any]:
    """The model of a compressed-tensors folder, float32; its hooks live as long as the block."""
    tensors = published_tensors(folder)
    decoded = decoded_linears(plan, tensors)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for name in model.state_dict():
        if name in tensors and name.removesuffix(".weight") not in decoded:
            _assign(model, name, tensors[name].float())
    with ExitStack() as hooks:
        for name, linear in quantized_linears(plan).items():
            _assign(model, f"{name}.weight", _weight(plan, linear, decoded[name]))
            bias = decoded[name].bias
            if bias is not None:
                _assign(model, f"{name}.bias", bias)
            if linear.scheme is not None and linear.scheme.activations is not None:
                quantizer = passes.activation_quantizer(linear.scheme.activations, decoded[name])
                hook = model.get_submodule(name).register_forward_pre_hook(
                    lambda _, inputs, quantizer=quantizer: (quantizer(inputs[0]),)
                )
                hooks.callback(hook.remove)
        yield model


def load_stock(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model as stock transformers loads it: no key missing, unexpected or of another shape."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    assert not info["mismatched_keys"], info
    return model.eval()


@torch.no_grad()
def logits(model: Any, tokens: Tensor = TOKENS) -> Tensor:
    """Logits [B, L, V]."""
    found: Tensor = model(tokens).logits
    return found


def _weight(plan: Plan, linear: LinearPlan, decoded: QuantizedLinear) -> Tensor:
    weight = dequantized_weight(decoded)
    assert linear.scheme is not None
    if linear.scheme.weights.bits == 4 and not linear.scheme.weights.symmetric:
        # the library decodes in the dtype of the scale
        return weight.to(TORCH_DTYPES[plan.model_dtype]).float()
    return weight


def _assign(model: Any, name: str, value: Tensor) -> None:
    """A parameter of its own: a head may have been tied to the embedding."""
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    assert getattr(module, leaf).shape == value.shape, name
    setattr(module, leaf, nn.Parameter(value, requires_grad=False))

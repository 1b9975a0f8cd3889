"""Why config.json says `dequantize` where zero points are packed, shown by the library's own files.

If one of these fails after an upgrade, the library has changed: see `quantization_config`.
"""

from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    apply_quantization_config,
)
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in int4 with zero points, packed and saved by compressed-tensors itself."""
    root = tmp_path_factory.mktemp("library")
    source = make_tiny_model(root / "source", tokenizer=False)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    weights = QuantizationArgs(num_bits=4, symmetric=False, strategy="group", group_size=32)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format="pack-quantized")
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format="pack-quantized",
        ignore=["lm_head"],
        quantization_status=QuantizationStatus.FROZEN,
    )
    apply_quantization_config(model, config, show_progress=False)
    for module in model.modules():
        if hasattr(module, "weight_zero_point"):
            module.weight_scale.data.fill_(0.1)
            module.weight_zero_point.data.fill_(3)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    model.save_pretrained(root / "saved")
    compressor.update_config(str(root / "saved"))
    return root / "saved"


def test_the_librarys_own_packed_zero_points_do_not_load_by_default(library_folder: Path) -> None:
    with pytest.raises(RuntimeError, match="mismatched"):
        AutoModelForCausalLM.from_pretrained(library_folder, dtype=torch.float32)


def test_they_load_when_decoded_while_loading(library_folder: Path) -> None:
    with pytest.warns(UserWarning, match="loading attributes"):
        _, info = AutoModelForCausalLM.from_pretrained(
            library_folder,
            dtype=torch.float32,
            output_loading_info=True,
            quantization_config=CompressedTensorsConfig(dequantize=True),
        )

    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]

"""Run by `test_select_device` in a process of its own: torch knows the device "npu" here."""

import pytest
import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from npu_stand_in import torch_npu_with
from quantfleet_worker import device as device_module
from quantfleet_worker.device import Backend, peak_device_memory_bytes, select_device

rename_privateuse1_backend("npu")  # as the real one does when imported


@pytest.mark.parametrize("backend", ["Auto", "HCCL"])
def test_npu_is_made_current_in_full_precision_and_factors_on_the_host(backend: Backend) -> None:
    torch_npu = torch_npu_with(4)
    chosen = select_device(backend, 3, count_cuda=lambda: 0, load_npu=lambda: torch_npu)
    assert (chosen.kind, chosen.index, chosen.process_group) == ("npu", 3, "hccl")
    assert chosen.torch_device == torch.device("npu", 3)
    assert chosen.factoring == torch.device("cpu")
    assert torch_npu.npu.current == [3]
    assert not torch_npu.npu.matmul.allow_hf32
    assert not torch_npu.npu.conv.allow_hf32
    device_module.synchronize(chosen)
    assert torch_npu.npu.synchronized == [3]
    assert peak_device_memory_bytes(chosen) == 1003

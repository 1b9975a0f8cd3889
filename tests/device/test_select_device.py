"""Which device a rank gets: decisions, tried with stand-ins for the hardware."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from quantfleet_api.errors import InvalidInput
from quantfleet_worker import device as device_module
from quantfleet_worker.device import Backend, load_npu, peak_device_memory_bytes, select_device


def torch_npu_with(num_devices: int) -> ModuleType:
    """A stand-in for torch_npu that records which device was made current."""
    rename_privateuse1_backend("npu")  # as the real one does when imported
    current: list[int] = []
    synchronized: list[int] = []
    npu = SimpleNamespace(
        current=current,
        synchronized=synchronized,
        device_count=lambda: num_devices,
        set_device=current.append,
        synchronize=synchronized.append,
        max_memory_allocated=lambda index: 1000 + index,
        matmul=SimpleNamespace(allow_hf32=True),
        conv=SimpleNamespace(allow_hf32=True),
    )
    return cast(ModuleType, SimpleNamespace(npu=npu))


def never_loaded() -> ModuleType:
    raise AssertionError("torch_npu must not be imported")


@pytest.fixture
def current_cuda(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def test_gloo_is_the_cpu_whatever_there_is() -> None:
    chosen = select_device("Gloo", 5, count_cuda=lambda: 8, load_npu=never_loaded)
    assert (chosen.kind, chosen.process_group) == ("cpu", "gloo")
    assert chosen.torch_device == torch.device("cpu")


@pytest.mark.parametrize("backend", ["Auto", "NCCL"])
def test_cuda_is_taken_without_importing_torch_npu(
    backend: Backend, current_cuda: list[int]
) -> None:
    chosen = select_device(backend, 1, count_cuda=lambda: 2, load_npu=never_loaded)
    assert (chosen.kind, chosen.index, chosen.process_group) == ("cuda", 1, "nccl")
    assert chosen.torch_device == chosen.factoring == torch.device("cuda", 1)
    assert current_cuda == [1]


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


@pytest.mark.parametrize("load", [lambda: None, lambda: torch_npu_with(0)], ids=["absent", "none"])
def test_auto_without_an_accelerator_is_the_cpu(load: Callable[[], ModuleType | None]) -> None:
    assert select_device("Auto", 0, count_cuda=lambda: 0, load_npu=load).kind == "cpu"


@pytest.mark.parametrize(
    ("backend", "num_cuda", "num_npu", "message"),
    [
        ("NCCL", 0, 2, "needs a CUDA device, torch sees none"),
        ("HCCL", 1, 2, "must fit the CUDA devices here"),
        ("HCCL", 0, None, "needs torch_npu, not installed"),
        ("HCCL", 0, 0, "needs a NPU, torch sees none"),
        ("Auto", 0, 1, "at most the number of NPUs of a machine, 1, got 2"),
        ("NCCL", 1, 0, "at most the number of CUDA devices of a machine, 1, got 2"),
    ],
)
def test_what_does_not_fit_is_refused(
    backend: Backend, num_cuda: int, num_npu: int | None, message: str
) -> None:
    torch_npu = None if num_npu is None else torch_npu_with(num_npu)
    with pytest.raises(InvalidInput, match=message):
        select_device(backend, 1, count_cuda=lambda: num_cuda, load_npu=lambda: torch_npu)


def test_a_broken_torch_npu_is_named_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libascendcl.so: not found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match=r"libascendcl\.so"):
        load_npu()


def test_importing_the_module_imports_no_torch_npu(tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text("raise SystemExit(9)")
    code = "import quantfleet_worker.device as d; d.select_device('Gloo', 0)"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert result.returncode == 0

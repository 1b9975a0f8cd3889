"""Which device a rank gets: decisions, tried with stand-ins for the hardware."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from npu_stand_in import torch_npu_with
from quantfleet_api.errors import InvalidInput
from quantfleet_worker.device import Backend, load_npu, select_device


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


def test_npus_are_taken_as_the_real_torch_npu_offers_them() -> None:
    """In a process of its own: torch takes the device name "npu" once, and for good."""
    cases = Path(__file__).with_name("npu_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


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

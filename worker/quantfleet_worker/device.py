"""Devices and numerics: the only file that knows cpu, cuda and npu.

Each rank calls `configure_numerics` first and `select_device` once; everything else receives the
`Device`. The engine compares `numerics_identity` over ranks and stores it in the journal: equal
identities mean equal bits for equal work.
"""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from quantfleet_api.errors import InvalidInput

Kind = Literal["cpu", "cuda", "npu"]
Backend = Literal["Auto", "HCCL", "NCCL", "Gloo"]
ProcessGroup = Literal["gloo", "nccl", "hccl"]

PROCESS_GROUPS: dict[Kind, ProcessGroup] = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
ATTENTION = "sdpa"
"""transformers' attention implementation that the layers run with; part of the identity."""
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1  # malloc.h
_MMAP_THRESHOLD_BYTES, _TRIM_THRESHOLD_BYTES = 4 << 20, 32 << 20
KERNEL_CHOICE = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
"""Environment variables that choose other kernels on the same hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where one rank computes and how its process group moves bytes."""

    kind: Kind
    index: int  # of the accelerator on this machine; 0 for a CPU
    torch_device: torch.device
    process_group: ProcessGroup
    factoring: torch.device  # for Cholesky and triangular solves: NPUs lack them, so the host's
    npu: Any = None  # the module torch_npu.npu, for kind npu only


CPU = Device(
    kind="cpu",
    index=0,
    torch_device=torch.device("cpu"),
    process_group="gloo",
    factoring=torch.device("cpu"),
)


def rank_environment(threads: int) -> dict[str, str]:
    """Variables that a rank's process must be started with: libraries read them only once.

    MKL_CBWR is not among them: with a fixed thread count MKL's results were seen not to depend on
    the alignment of buffers, and it slows MKL down on processors of other makers.
    """
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "MKL_DYNAMIC": "FALSE",  # else MKL may use fewer threads when it likes
        "OMP_DYNAMIC": "FALSE",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # a fixed workspace, without it cuBLAS may vary
        "HCCL_DETERMINISTIC": "true",
        "TOKENIZERS_PARALLELISM": "false",
    }


def return_freed_memory() -> None:
    """Have glibc give large freed blocks back at once; once, at the start of a rank.

    By default it learns to keep blocks of up to 32 MiB, and a rank's memory would depend on the
    order in which tensors were freed. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        # setting one fixes the other at 128 KiB, and every activation would be faulted in anew
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def configure_numerics(threads: int) -> None:
    """Fix thread counts and forbid everything that trades bits for speed; once, before any work."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # settable once in a process
        torch.set_num_interop_threads(1)
    # use_deterministic_algorithms would import the compiler, seconds of every rank's start
    torch.set_deterministic_debug_mode("error")
    # deterministic mode also fills every empty tensor, a pass over memory that decides no result
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - untyped
    torch.set_float32_matmul_precision("highest")  # no TF32, no bfloat16 in float32 products
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def load_npu() -> ModuleType | None:
    """The module torch_npu, None where it is not installed.

    Importing it fails beside another accelerator, so this is called only where torch sees none.
    """
    if importlib.util.find_spec("torch_npu") is None:
        return None
    try:
        return importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as error:
        raise InvalidInput(
            "torch_npu",
            f"{type(error).__name__}: {error}",
            "is installed and must import (backend Gloo uses the CPU instead)",
        ) from error


def select_device(
    backend: Backend,
    local_rank: int,
    *,
    count_cuda: Callable[[], int] = torch.cuda.device_count,
    load_npu: Callable[[], ModuleType | None] = load_npu,
) -> Device:
    """The device of the rank `local_rank` of this machine, made current.

    Auto takes CUDA before NPUs before the CPU; a named backend is taken or refused, never replaced.
    """
    if backend == "Gloo":
        return CPU
    num_cuda = count_cuda()
    if backend == "NCCL" or (backend == "Auto" and num_cuda):
        _check_count("NCCL", "CUDA device", num_cuda, local_rank)
        torch.cuda.set_device(local_rank)
        return _accelerator("cuda", local_rank)
    if num_cuda:
        raise InvalidInput(
            "spec.workers.backend", backend, "must fit the CUDA devices here: NCCL, Auto or Gloo"
        )
    torch_npu = load_npu()
    num_npu = torch_npu.npu.device_count() if torch_npu else 0
    if torch_npu is None or (backend == "Auto" and not num_npu):
        if backend == "HCCL":
            raise InvalidInput("spec.workers.backend", backend, "needs torch_npu, not installed")
        return CPU
    _check_count("HCCL", "NPU", num_npu, local_rank)
    torch_npu.npu.set_device(local_rank)
    torch_npu.npu.matmul.allow_hf32 = False
    torch_npu.npu.conv.allow_hf32 = False
    return _accelerator("npu", local_rank, torch_npu.npu)


def synchronize(device: Device) -> None:
    """Wait until the device has done all it was given."""
    if device.kind == "cuda":
        torch.cuda.synchronize(device.torch_device)
    elif device.kind == "npu":
        device.npu.synchronize(device.index)


def peak_memory_bytes() -> int:
    """Most host memory that this process ever had resident, in bytes (VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(_fields(status.read_text())["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def peak_device_memory_bytes(device: Device) -> int:
    """Most memory that this process ever allocated on its accelerator; 0 for a CPU."""
    if device.kind == "cuda":
        return int(torch.cuda.max_memory_allocated(device.torch_device))
    if device.kind == "npu":
        return int(device.npu.max_memory_allocated(device.index))
    return 0


def numerics_identity(
    device: Device,
    threads: int,
    *,
    cpuinfo: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """What decides the bits of a result besides plan and data, as short texts by name.

    Holds nothing that tells ranks of one kind of machine apart (no index, host name or address).
    """
    if cpuinfo is None:
        path = Path("/proc/cpuinfo")
        cpuinfo = path.read_text() if path.exists() else ""
    identity = {
        "attention": ATTENTION,
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "float32_matmul": torch.get_float32_matmul_precision(),
        "host": _host_model(cpuinfo),
        "instructions": _instructions(cpuinfo),
        "kernels": " ".join(f"{k}={environment[k]}" for k in KERNEL_CHOICE if k in environment),
        "libraries": _libraries(torch.__config__.show()),
        "threads": str(threads),
        "torch": str(torch.__version__),
        "transformers": importlib.metadata.version("transformers"),
    }
    return identity | _device_identity(device)


def _check_count(backend: str, what: str, count: int, local_rank: int) -> None:
    if count == 0:
        raise InvalidInput("spec.workers.backend", backend, f"needs a {what}, torch sees none")
    if local_rank >= count:
        raise InvalidInput(
            "spec.workers.processesPerWorker",
            local_rank + 1,
            f"must be at most the number of {what}s of a machine, {count}",
        )


def _accelerator(kind: Kind, index: int, npu: Any = None) -> Device:
    here = torch.device(kind, index)
    return Device(
        kind=kind,
        index=index,
        torch_device=here,
        process_group=PROCESS_GROUPS[kind],
        factoring=torch.device("cpu") if kind == "npu" else here,
        npu=npu,
    )


def _device_identity(device: Device) -> dict[str, str]:
    if device.kind == "cuda":
        driver = Path("/proc/driver/nvidia/version")
        cudnn: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return {
            "device": torch.cuda.get_device_name(device.torch_device),
            "device_library": f"CUDA {torch.version.cuda} cuDNN {cudnn}",
            "driver": driver.read_text().splitlines()[0] if driver.exists() else "unknown",
            "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        }
    if device.kind == "npu":
        return {
            "device": str(device.npu.get_device_name(device.index)),
            "device_library": f"torch_npu {importlib.metadata.version('torch_npu')} "
            f"CANN {device.npu.utils.get_cann_version()}",
            "driver": str(device.npu.utils.get_cann_version("DRIVER")),
        }
    return {"device": "cpu"}


def _fields(text: str) -> dict[str, str]:
    """The first value of each `name : value` line."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _host_model(cpuinfo: str) -> str:
    """Maker, family and model; ARM has numbers only."""
    fields = _fields(cpuinfo)
    x86 = ("vendor_id", "cpu family", "model", "model name", "stepping")
    arm = ("CPU implementer", "CPU part", "CPU variant")
    found = [fields[name] for name in (*x86, *arm) if name in fields]
    return " ".join([platform.machine(), *found])


def _instructions(cpuinfo: str) -> str:
    """What torch dispatches on, and the vector extensions that its libraries look for."""
    fields = _fields(cpuinfo)
    flags = fields.get("flags", fields.get("Features", "")).split()
    vector = [f for f in flags if re.match(r"(avx|amx|fma|f16c|sse4|sve|sme|asimd|bf16|i8mm)", f)]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *sorted(vector)])


def _libraries(config: str) -> str:
    """Versions of BLAS and oneDNN from torch's build settings."""
    wanted = r"Math Kernel Library Version \S+|MKL-DNN v\S+|BLAS_INFO=\w+|LAPACK_INFO=\w+"
    return " ".join(re.findall(wanted, config))

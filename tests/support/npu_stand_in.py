"""A stand-in for torch_npu."""

from types import ModuleType, SimpleNamespace
from typing import cast


def torch_npu_with(num_devices: int) -> ModuleType:
    """A stand-in for torch_npu that records which device was made current."""
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

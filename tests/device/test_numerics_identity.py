"""The numerics identity: what belongs to it, and that the settings behind it take effect."""

import json
import os
import subprocess
import sys

import pytest
import torch

from quantfleet_worker.device import (
    CPU,
    numerics_identity,
    peak_memory_bytes,
    rank_environment,
)

XEON = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8481C
stepping\t: 8
flags\t\t: fpu sse2 avx2 avx512f amx_bf16 fma
processor\t: 1
vendor_id\t: GenuineIntel
flags\t\t: fpu
"""
ARM = """processor\t: 0
BogoMIPS\t: 200.00
Features\t: fp asimd sve bf16 sha2
CPU implementer\t: 0x48
CPU part\t: 0xd01
"""


def identity(cpuinfo: str = XEON, threads: int = 1, **environment: str) -> dict[str, str]:
    return numerics_identity(CPU, threads, cpuinfo=cpuinfo, environment=environment)


def test_identity_names_what_decides_bits() -> None:
    found = identity()
    assert found["host"].endswith("GenuineIntel 6 143 Intel(R) Xeon(R) Platinum 8481C 8")
    assert found["instructions"].split()[1:] == ["amx_bf16", "avx2", "avx512f", "fma"]
    assert found["torch"] == torch.__version__
    assert found["libraries"]
    assert found["device"] == "cpu"
    assert found["attention"] == "sdpa"


def test_identity_is_the_same_in_every_process_of_a_machine() -> None:
    code = (
        "import json; from quantfleet_worker.device import *; "
        "configure_numerics(1); print(json.dumps(numerics_identity(CPU, 1)))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | rank_environment(1),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    }
    assert len(texts) == 1
    found = json.loads(texts.pop())
    assert found["deterministic"] == "True"
    assert found["float32_matmul"] == "highest"


@pytest.mark.parametrize(
    "other",
    [
        identity(threads=2),
        identity(ARM),
        identity(XEON.replace("avx512f", "")),
        identity(XEON.replace(": 143", ": 106")),
        identity(OPENBLAS_CORETYPE="Haswell"),
    ],
    ids=["threads", "maker", "instructions", "model", "kernels"],
)
def test_another_machine_has_another_identity(other: dict[str, str]) -> None:
    assert other != identity()


def test_a_variable_that_decides_nothing_does_not_count() -> None:
    assert identity(HOSTNAME="node-7") == identity()


def test_arm_is_told_by_its_numbers() -> None:
    found = identity(ARM)
    assert found["host"].endswith("0x48 0xd01")
    assert found["instructions"].split()[1:] == ["asimd", "bf16", "sve"]


def test_configured_numerics_hold() -> None:
    """In a process of its own: the settings are global."""
    code = """
import torch
from quantfleet_worker.device import configure_numerics
configure_numerics(2)
configure_numerics(2)
assert torch.get_num_threads() == 2
assert torch.get_num_interop_threads() == 1
assert torch.are_deterministic_algorithms_enabled()
assert torch.get_float32_matmul_precision() == "highest"
assert not torch.backends.cudnn.allow_tf32
assert not torch.backends.cudnn.benchmark
assert not torch.utils.deterministic.fill_uninitialized_memory
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False)
    assert result.returncode == 0


def test_products_do_not_depend_on_where_their_operands_lie() -> None:
    """The reason why MKL_CBWR is not set: seen here, and watched."""
    generator = torch.Generator().manual_seed(0)
    X, W = torch.randn(37, 576, generator=generator), torch.randn(192, 576, generator=generator)
    expected = torch.nn.functional.linear(X, W)
    for offset in (1, 3, 4, 8):
        moved = torch.empty(X.numel() + offset)[offset:].view_as(X).copy_(X)
        assert torch.equal(torch.nn.functional.linear(moved, W), expected)


def test_peak_memory_grows_with_what_is_touched() -> None:
    code = """
from quantfleet_worker.device import peak_memory_bytes
before = peak_memory_bytes()
held = bytearray(b"x") * (256 << 20)
del held
print(peak_memory_bytes() - before)
"""
    command = [sys.executable, "-c", code]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 250 << 20 < grown < 300 << 20
    assert peak_memory_bytes() > 0

"""What the project promises of each scheme on the demo's model: the whole model, for the soak.

Ratios are perplexity over that of the float model, which was itself dequantized from 4 bits. They
are those of docs/quality.md, and equal for any number of ranks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.soak,
    pytest.mark.demo,
    pytest.mark.distributed,
    pytest.mark.xdist_group("quality"),  # one process measures each recipe once
]


@pytest.fixture(scope="module")
def ratio(demo) -> Callable[[str], float]:
    """Perplexity over float by recipe name of `python -m benchmarks.quality --list --full`."""
    known: dict[str, float] = {}

    def measured(name: str) -> float:
        if name not in known:
            command = [sys.executable, "-m", "benchmarks.quality", "--only", name]
            command += ["--demo", str(demo.model.parents[1])]
            done = subprocess.run(
                command, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            known[name] = json.loads(done.stdout)["ratio"]
        return known[name]

    return measured


def test_dynamic_is_near_float(ratio: Callable[[str], float]) -> None:
    assert ratio("w8a8-dynamic") <= 1.035


GPTQ_LIMITS = {"asym": 1.28, "sym": 1.35}
"""Without activation order. Symmetric groups are further away on this model, for the reference
implementation too: see docs/quality.md."""


@pytest.mark.parametrize("kind", GPTQ_LIMITS)
def test_gptq_is_better_than_rounding(ratio: Callable[[str], float], kind: str) -> None:
    found = ratio(f"w4a16-g64-{kind}-gptq/Quantized")
    assert found <= GPTQ_LIMITS[kind]
    assert found < ratio(f"w4a16-g64-{kind}")


@pytest.mark.parametrize("kind", GPTQ_LIMITS)
def test_activation_order_makes_gptq_better(ratio: Callable[[str], float], kind: str) -> None:
    ordered = ratio(f"w4a16-g64-{kind}-gptq-order/Quantized")
    assert ordered <= 1.28
    assert ordered < ratio(f"w4a16-g64-{kind}-gptq/Quantized")


def test_smoothing_makes_static_ranges_better(ratio: Callable[[str], float]) -> None:
    for observer in ("minmax", "mse"):
        smoothed = ratio(f"smooth0.5-w8a8-asym-{observer}/Float")
        assert smoothed < ratio(f"w8a8-asym-{observer}/Float")


def test_mse_ranges_are_better_than_minmax(ratio: Callable[[str], float]) -> None:
    assert ratio("w8a8-asym-mse/Float") < ratio("w8a8-asym-minmax/Float")


def test_best_static_recipe(ratio: Callable[[str], float]) -> None:
    """That of the demo."""
    assert ratio("smooth0.8-w8a8-asym-mse/Float") <= 1.03

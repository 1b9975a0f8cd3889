"""What every test shares: one thread, loud prerequisites, and the real model where it is needed."""

import os

# Before torch is imported: one thread a process, in the ranks that tests start too. Several
# processes run at once, and the numerics identity holds for a fixed number of threads.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from plane_fixtures import (
    behind_proxy,
    cluster,
    kubelet,
    namespace,
    own_server_place,
    own_workplace,
    plane,
    proxy,
    server_place,
    workplace,
)

__all__ = [  # fixtures, for every test to ask for
    "behind_proxy",
    "cluster",
    "kubelet",
    "namespace",
    "own_server_place",
    "own_workplace",
    "plane",
    "proxy",
    "server_place",
    "workplace",
]

REPOSITORY = Path(__file__).resolve().parent.parent

# The same examples in every run: a failure is a change, not luck. Soak tests ask for more.
settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test whose prerequisite is missing fails: a skip would be read as a pass."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module (pytest.importorskip)."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: Any) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("QUANTFLEET_ALLOW_SKIP"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{reason}\n(a skip counts as a failure unless QUANTFLEET_ALLOW_SKIP is set)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The real model and text that `make demo-data` fetched."""

    model: Path  # SmolLM2-135M-Instruct, 30 layers, float32
    cut_model: Path  # its first 2 decoder layers
    calibration: Path  # .jsonl
    evaluation: Path  # .jsonl


@pytest.fixture(scope="session")
def demo() -> Demo:
    """The real model and text; mark the test `demo`."""
    root = Path(os.environ.get("QUANTFLEET_CACHE") or REPOSITORY / ".cache") / "demo"
    found = Demo(
        model=root / "models" / "smollm2",
        cut_model=root / "models" / "smollm2-cut2",
        calibration=root / "data" / "calib.jsonl",
        evaluation=root / "data" / "eval.jsonl",
    )
    for path in (found.model, found.cut_model, found.calibration, found.evaluation):
        if not path.exists():
            pytest.skip(f"{path} is missing: run `make demo-data`")
    return found

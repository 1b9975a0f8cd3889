"""A manifest on disk, and the command as a process of its own with a stand-in for the engine.

The stand-in replaces only the engine's three entry points; how the command shows and ends is real.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

MANIFEST = """\
apiVersion: quantfleet.io/v1alpha1
kind: QuantizationJob
metadata: {name: small}
spec:
  model: {source: {pvc: {claimName: models, path: m}}}
  recipe: {scheme: W8A8Dynamic, weights: {method: RTN}}
  output: {pvc: {claimName: out, path: o}, formats: [CompressedTensors]}
"""

ENGINE = """\
import sys, types
from dataclasses import dataclass
from quantfleet_api.errors import *
from quantfleet_api.progress import Progress

@dataclass(frozen=True)
class Outcome:
    exit_code: ExitCode
    cause: str = ""
    output: object = None
    report: object = None
    hint: str = ""

def run_job(job, *, volumes, workers, discard_journal, on_progress, on_log):
    raise AssertionError("not called")

def describe(job, *, volumes, workers):
    raise AssertionError("not called")

def verify_folder(path):
    raise AssertionError("not called")

{body}
for name in ("launch", "describe", "verify"):
    module = types.ModuleType("quantfleet_worker." + name)
    module.Outcome, module.run_job = Outcome, run_job
    module.describe, module.verify_folder = describe, verify_folder
    sys.modules[module.__name__] = module

from quantfleet_cli.main import entry
entry()
"""

Completed = subprocess.CompletedProcess[str]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A small manifest, beside the folders `models` and `out`."""
    (tmp_path / "models").mkdir()
    (tmp_path / "out").mkdir()
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST)
    return path


@pytest.fixture
def arguments(job: Path) -> list[str]:
    """The manifest and its volumes, as typed."""
    folder = job.parent
    return [str(job), "--volume", f"models={folder}/models", "--volume", f"out={folder}/out"]


@pytest.fixture
def environment() -> dict[str, str]:
    """No settings of the caller's terminal."""
    unwanted = {"COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"}
    return {key: value for key, value in os.environ.items() if key not in unwanted}


@pytest.fixture
def quantfleet(environment: Mapping[str, str]) -> Callable[..., Completed]:
    """Runs the command, without an engine unless `engine` (Python text) stands in for it."""

    def run(*typed: str, engine: str | None = None) -> Completed:
        program = ["-m", "quantfleet_cli"] if engine is None else ["-c", stand_in(engine)]
        return subprocess.run(
            [sys.executable, *program, *typed],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
        )

    return run


def stand_in(body: str) -> str:
    """The program that is the command with `body` as its engine."""
    return ENGINE.replace("{body}", body)


@pytest.fixture
def program_with() -> Callable[[str], str]:
    """Gives the program that is the command with some engine."""
    return stand_in

"""A job for tests to spoil, and the command in this process."""

import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import torch

from quantfleet_cli.main import entry
from spoilt_jobs import Job, Said
from tiny_models import make_tiny_model, tiny_texts, write_jsonl


@pytest.fixture(scope="session")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, to be copied."""
    torch.set_num_threads(1)
    return make_tiny_model(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture
def job(tmp_path: Path, good_model: Path) -> Job:
    """A job that would succeed."""
    for name in ("models", "data", "out"):
        (tmp_path / name).mkdir()
    copytree(good_model, tmp_path / "models" / "llama")
    write_jsonl(tmp_path / "data" / "calib.jsonl", tiny_texts(6))
    return Job(root=tmp_path)


@pytest.fixture
def quantfleet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[list[str]], Said]:
    """The command in this process; planning and ranks are processes, as always."""

    def run(typed: list[str]) -> Said:
        monkeypatch.setattr(sys, "argv", ["quantfleet", *typed])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            entry()
        captured = capfd.readouterr()
        return Said(int(ended.value.code or 0), captured.out, captured.err)

    return run

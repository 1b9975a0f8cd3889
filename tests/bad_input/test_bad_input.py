"""Whatever is wrong with a job: exit code 64, one line, no traceback, nothing left behind."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

import spoilt_inputs
import spoilt_manifests
from spoilt_jobs import CASES, Said

assert spoilt_inputs, "registers its cases"
assert spoilt_manifests, "registers its cases"

FOUND_BY_A_RANK = "weight-not-finite"
"""Weights are read by ranks only; which one, and where it was, is told first."""


def check_said(said: Any, job: Any, name: str) -> None:
    """One line with field, rule and value, and no more."""
    _, rule, value = CASES[name]
    line = said.stderr.replace(str(job.root), "{root}")
    assert said.code == 64, line
    assert "Traceback" not in said.stdout + line
    assert line.count("\n") == 1
    start = "error: "
    if name == FOUND_BY_A_RANK:
        place = re.match(r"error: rank \d, calibrating layer 2 of 4 \(model.layers.1\): ", line)
        assert place is not None, line
        start = place[0]
    assert line.startswith(start + rule), line
    assert f", got {value}" in line, line


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line_and_leaves_nothing(job: Any, quantfleet: Any, name: str) -> None:
    CASES[name][0](job)
    typed = job.arguments()
    before = job.everything()
    check_said(quantfleet(typed), job, name)
    assert job.everything() == before


@pytest.mark.parametrize(
    "name", ["unknown-field", "data-line-is-no-json", FOUND_BY_A_RANK, "output-exists"]
)
def test_bad_input_is_one_line_of_a_real_process(job: Any, name: str) -> None:
    """Planning and ranks are processes, which share what the command writes to."""
    CASES[name][0](job)
    typed = job.arguments()
    before = job.everything()
    done = subprocess.run(
        [sys.executable, "-m", "quantfleet_cli", *typed],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    check_said(Said(done.returncode, done.stdout, done.stderr), job, name)
    assert job.everything() == before


@pytest.mark.parametrize(
    "name",
    [
        "more-workers-than-memory",
        "unknown-architecture",
        "weights-truncated",
        "data-line-without-the-field",
        "ignore-that-names-no-module",
        "output-exists",
    ],
)
def test_plan_refuses_for_the_same_reason(job: Any, quantfleet: Any, name: str) -> None:
    CASES[name][0](job)
    before = job.everything()
    said = quantfleet(job.arguments("plan"))
    assert said.stderr.startswith("refused: ")
    told = said.stderr.replace("refused: ", "error: ", 1)
    check_said(Said(said.code, said.stdout, told), job, name)
    assert job.everything() == before


def test_right_job_succeeds(job: Any, quantfleet: Any) -> None:
    """What the cases spoil."""
    said = quantfleet(job.arguments())
    assert said.code == 0, said.stderr
    assert said.stderr == ""


def test_bad_weight_keeps_the_work_of_before(job: Any, quantfleet: Any) -> None:
    """A folder that was there before the mistake is not the mistake's to remove."""
    name = FOUND_BY_A_RANK
    whole = (job.model / "model.safetensors").read_bytes()
    work = job.output.with_name("result.work")
    work.mkdir()
    (work / "attempt-3").mkdir()
    CASES[name][0](job)
    said = quantfleet(job.arguments())
    assert said.code == 64
    assert "weights must be finite" in said.stderr
    (journal,) = work.glob("attempt-4/journal.json")
    assert len(json.loads(journal.read_text())["layers"]) >= 1
    (job.model / "model.safetensors").write_bytes(whole)
    assert quantfleet(job.arguments()).code == 0

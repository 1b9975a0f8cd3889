"""The NPU image's wrapper: CANN's environment reaches the program, whose exit code comes back."""

import subprocess
from pathlib import Path

WRAPPER = Path(__file__).resolve().parents[2] / "worker" / "with_cann.sh"


def call(tmp_path: Path, *arguments: str, settings: str) -> subprocess.CompletedProcess[str]:
    """Call the wrapper as `python`, with a CANN script and a program that stand in for the real."""
    (tmp_path / "set_env.sh").write_text(settings)
    programs, first = tmp_path / "bin", tmp_path / "cann"
    programs.mkdir()
    first.mkdir()
    program = programs / "python"
    program.write_text('#!/bin/sh\necho "$ASCEND_HOME|$*"\nexit 64\n')
    program.chmod(0o755)
    (first / "python").write_bytes(WRAPPER.read_bytes())
    environment = {
        "PATH": "/usr/bin:/bin",
        "CANN_ENVIRONMENT": str(tmp_path / "set_env.sh"),
        "QUANTFLEET_PROGRAMS": str(programs),
    }
    command = ["bash", str(first / "python"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_the_environment_reaches_the_program(tmp_path: Path) -> None:
    settings = 'export ASCEND_HOME=there LD_LIBRARY_PATH="/a:$LD_LIBRARY_PATH"\n'  # unset: no error
    done = call(tmp_path, "-m", "quantfleet_worker", settings=settings)
    assert (done.returncode, done.stdout) == (64, "there|-m quantfleet_worker\n")


def test_without_cann_the_program_does_not_run(tmp_path: Path) -> None:
    done = call(tmp_path, "-m", "quantfleet_worker", settings="false\n")
    assert done.returncode not in (0, 64)
    assert done.stdout == ""

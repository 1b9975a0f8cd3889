"""Exit code and last words of the command, as whoever started the process sees them."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]

FINISHES = """
def run_job(job, *, volumes, workers, discard_journal, on_progress, on_log):
    return Outcome({outcome})
"""

RAISES = """
def run_job(job, *, volumes, workers, discard_journal, on_progress, on_log):
    raise {error}

def describe(job, *, volumes, workers):
    raise {error}
"""


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--volume", "models"], "--volume: must be CLAIM=DIR, got 'models'"),
        (["--volume", "=x"], "--volume: must be CLAIM=DIR, got '=x'"),
        (["--volume", "models=a", "--volume", "models=b"], "must name the claim models only once"),
        (["--volume", "models=JOB"], "--volume: must name a folder, not a file"),
        ([], "spec.model.source.pvc.claimName: names a volume that is not mapped: pass --volume "
         "models=DIR, got 'models'"),
        (["--volume", "models=FOLDER"], "spec.output.pvc.claimName: names a volume that is not "
         "mapped: pass --volume out=DIR, got 'out'"),
    ],
)  # fmt: skip
def test_wrong_volumes_are_one_line_and_64(
    quantfleet: Command, job: Path, typed: list[str], message: str
) -> None:
    typed = [text.replace("JOB", str(job)).replace("FOLDER", str(job.parent)) for text in typed]

    done = quantfleet("run", str(job), *typed)

    assert done.returncode == 64
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_wrong_manifest_is_one_line_and_64(quantfleet: Command, arguments: list[str]) -> None:
    job = Path(arguments[0])
    job.write_text(job.read_text().replace("weights:", "weigths:"))

    done = quantfleet("run", *arguments)

    assert done.returncode == 64
    assert done.stderr == (
        "error: spec.recipe.weigths: unknown field, did you mean 'weights'?, "
        "got {'method': 'RTN'}\n"
    )
    assert sorted(path.name for path in job.parent.rglob("*")) == ["job.yaml", "models", "out"]


@pytest.mark.parametrize(
    "typed", ["run", "walk", "run job.yaml --wrokers 2", "run job.yaml --workers two"]
)
def test_wrong_usage_is_64(quantfleet: Command, typed: str) -> None:
    done = quantfleet(*typed.split())

    assert done.returncode == 64
    assert "Traceback" not in done.stderr
    assert "Usage: " in done.stderr


def test_missing_files_are_one_line_and_64(quantfleet: Command, tmp_path: Path) -> None:
    missing = quantfleet("run", str(tmp_path / "no.yaml"))
    assert (missing.returncode, missing.stderr.count("\n")) == (64, 1)
    assert "manifest: must be a readable file (No such file or directory)" in missing.stderr

    folder = quantfleet("verify", str(tmp_path / "no"))
    assert (folder.returncode, folder.stderr.count("\n")) == (64, 1)
    assert "DIR: must be an existing folder" in folder.stderr


@pytest.mark.parametrize(
    ("outcome", "code", "stderr"),
    [
        ("ExitCode.DONE", 0, ""),
        (
            "ExitCode.GATE_NOT_MET, 'ratio 1.2 is above 1.05'",
            65,
            "error: ratio 1.2 is above 1.05\n",
        ),
        (
            "ExitCode.TRY_AGAIN, 'rank 1 was lost', hint='run it again'",
            75,
            "error: rank 1 was lost\nhint: run it again\n",
        ),
        (
            "ExitCode.INTERRUPTED, '3 layers\\nare committed', hint='run it again'",
            130,
            "interrupted: 3 layers are committed\nhint: run it again\n",
        ),
    ],
)
def test_outcome_of_the_engine_is_the_exit_code(
    quantfleet: Command, arguments: list[str], outcome: str, code: int, stderr: str
) -> None:
    done = quantfleet("run", *arguments, engine=FINISHES.format(outcome=outcome))

    assert (done.returncode, done.stderr) == (code, stderr)


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        ("InvalidInput('config.json', 'bert', 'must be known')", 64,
         "error: config.json: must be known, got 'bert'"),
        ("OutputUnwritable('disk is full')", 73, "error: disk is full"),
        ("InputUnreadable('two\\nlines')", 74, "error: two lines"),
        ("KeyboardInterrupt", 130, "error: interrupted"),
    ],
)  # fmt: skip
def test_known_failure_is_one_line_and_its_code(
    quantfleet: Command, arguments: list[str], command: str, error: str, code: int, line: str
) -> None:
    done = quantfleet(command, *arguments, engine=RAISES.format(error=error))

    assert (done.returncode, done.stderr) == (code, f"{line}\n")


def test_bug_shows_its_traceback_and_is_70(quantfleet: Command, arguments: list[str]) -> None:
    done = quantfleet("run", *arguments, engine=RAISES.format(error="KeyError('oops')"))

    assert done.returncode == 70
    assert "Traceback" in done.stderr
    assert "KeyError: 'oops'" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: this is a bug")


def test_engine_gets_what_was_typed(quantfleet: Command, arguments: list[str]) -> None:
    engine = """
def run_job(job, *, volumes, workers, discard_journal, on_progress, on_log):
    import os
    on_log(f"{job.metadata.name} {sorted(volumes)} {workers} {discard_journal}")
    on_log(f"{all(path.is_absolute() for path in volumes.values())} {os.environ['QF_LOG_LEVEL']}")
    return Outcome(ExitCode.DONE)
"""
    typed = ["--workers", "3", "--discard-journal", "--log-level", "debug"]

    done = quantfleet("run", *arguments, *typed, engine=engine)

    assert done.stderr == "small ['models', 'out'] 3 True\nTrue debug\n"


def test_verify_lists_problems_and_is_65(quantfleet: Command, tmp_path: Path) -> None:
    bad = quantfleet(
        "verify", str(tmp_path), engine="verify_folder = lambda path: ['a is missing', 'b differs']"
    )
    assert (bad.returncode, bad.stderr) == (65, "error: a is missing\nerror: b differs\n")

    good = quantfleet("verify", str(tmp_path), engine="verify_folder = lambda path: []")
    assert (good.returncode, good.stdout) == (0, f"{tmp_path}: complete and unchanged\n")


def test_reader_that_leaves_does_not_end_a_run(
    program_with: Callable[[str], str],
    environment: Mapping[str, str],
    arguments: list[str],
) -> None:
    engine = """
def run_job(job, *, volumes, workers, discard_journal, on_progress, on_log):
    sys.stdin.read()  # until the reader of our output is gone
    for layer in range(3):
        on_progress(Progress(rank=0, world_size=1, stage="Solving", layer=layer, num_layers=3))
    on_log("all layers done")
    return Outcome(ExitCode.DONE, report={"seconds": 1.0})
"""
    with subprocess.Popen(
        [sys.executable, "-c", program_with(engine), "run", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == "all layers done\n"
        assert process.wait(timeout=60) == 0


def test_help_and_bad_manifests_need_no_engine(quantfleet: Command, arguments: list[str]) -> None:
    engine = """
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "quantfleet_worker", "numpy"):
            raise AssertionError(name)
sys.meta_path.insert(0, Refuse())
"""
    assert quantfleet("--help", engine=engine).returncode == 0
    assert quantfleet("version", engine=engine).stdout.startswith("quantfleet ")
    assert quantfleet("run", arguments[0], engine=engine).returncode == 64

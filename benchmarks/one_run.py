"""One timed run of the engine in a process of its own: `python -m benchmarks.one_run`.

Its own process, because the ranks' fork server is made once a process: without the writing, or on
fewer cores, it has to be another one. Prints the seconds. Without writing the run then fails to
verify what is not there, which nobody looks at.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import speed
from quantfleet_worker import launch


def seconds(
    demo: Path, model: Path, *, samples: int, ranks: int, cores: int, written: bool = True
) -> float:
    """Seconds of one run of the main recipe by `ranks`, on that many cores."""
    command = [sys.executable, "-m", "benchmarks.one_run", "--demo", str(demo)]
    command += ["--model", str(model), "--samples", str(samples)]
    command += ["--ranks", str(ranks), "--cores", str(cores)]
    if not written:
        command.append("--unwritten")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the seconds of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--unwritten", action="store_true")
    arguments = parser.parse_args()
    keep_to(arguments.cores)
    if arguments.unwritten:
        launch.PRELOADED.append("benchmarks.without_writes")
    recipe = speed.RECIPES["w8a8-quantized"]
    with tempfile.TemporaryDirectory(prefix="quantfleet-bench-") as folder:
        found, outcome = speed.seconds_to_verify(
            arguments.demo,
            arguments.model,
            recipe,
            arguments.samples,
            arguments.ranks,
            Path(folder) / "out",
        )
    if outcome.exit_code and not arguments.unwritten:
        raise SystemExit(f"error: {outcome.cause}")
    print(found)


def keep_to(cores: int) -> None:
    """Run this process and all that it starts on that many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


if __name__ == "__main__":
    main()

"""How long the engine takes when no layer and no activation is written.

`python -m benchmarks.unwritten` is a process of its own, because the ranks' fork server has to be
made without the writing. Prints the seconds; the run then fails to verify what is not there, which
nobody looks at.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks import speed
from quantfleet_worker import launch


def main() -> None:
    """Print the seconds of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--samples", type=int, required=True)
    arguments = parser.parse_args()
    launch.PRELOADED.append("benchmarks.without_writes")
    with tempfile.TemporaryDirectory(prefix="quantfleet-bench-") as folder:
        recipe = speed.RECIPES["w8a8-quantized"]
        print(
            speed.seconds_to_verify(
                arguments.demo, arguments.model, recipe, arguments.samples, 2, Path(folder) / "out"
            )[0]
        )


if __name__ == "__main__":
    main()

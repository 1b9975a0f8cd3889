"""`python -m benchmarks --demo DIR`: speed, memory and scale, a JSON line a figure.

Every figure is a ratio of two times of one run on one machine, or bytes; see `speed` and `memory`.
`scale` and `restart` are about the operator, `server` about the status server; they need what
`make kubernetes` builds.
"""

import argparse
from pathlib import Path

from benchmarks import memory, speed

DEFAULT_LAYERS = 8


def main() -> None:
    """Run the benchmarks that are asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--demo", type=Path, required=True, help="folder of the demo's model, data")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    parser.add_argument("--layers", type=int, default=DEFAULT_LAYERS, help="0 = the whole model")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--only", choices=("speed", "memory", "scale", "restart", "server"))
    parser.add_argument("--jobs", type=int, default=1000, help="of the benchmark `scale`")
    arguments = parser.parse_args()
    if arguments.only in (None, "speed"):
        speed.run(
            arguments.demo,
            rounds=arguments.rounds,
            layers=arguments.layers,
            samples=arguments.samples,
        )
    if arguments.only in (None, "memory"):
        memory.run()
    if arguments.only in (None, "scale"):
        from benchmarks import scale  # its own imports are of the control-plane tests

        scale.run(arguments.jobs)
    if arguments.only in (None, "restart"):
        from benchmarks import restart

        restart.run(arguments.rounds)
    if arguments.only in (None, "server"):
        from benchmarks import server

        server.run()


if __name__ == "__main__":
    main()

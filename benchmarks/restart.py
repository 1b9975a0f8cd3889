"""How soon an operator that was killed has caught up with all that happened meanwhile.

Bound: 10 s from the start of its process, with 20 jobs that all moved on while it was away.
"""

import json
import tempfile
from pathlib import Path

from benchmarks.own_plane import own_plane
from plane_fixtures import new_namespace
from restart_run import BOUND_SECONDS, catch_up
from workplaces import open_workplace

JOBS = 20
LONGEST_SECONDS = 120.0


def run(rounds: int) -> None:
    """Start everything; kill the operator and wait for it, once a round; print every figure."""
    with tempfile.TemporaryDirectory() as name, own_plane(Path(name)) as plane:
        namespace = new_namespace(plane.cluster, "restart")
        with open_workplace(plane, namespace, Path(name)) as workplace:
            seconds = [catch_up(workplace, JOBS, seconds=LONGEST_SECONDS) for _ in range(rounds)]
    figures = {"jobs": JOBS, "bound_seconds": BOUND_SECONDS, "seconds": seconds}
    print(json.dumps({"benchmark": "operator_restart", **figures}))

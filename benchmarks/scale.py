"""The operator under a thousand jobs on a real control plane; a JSON line with the figures.

Bounds: memory below 400 MiB, reconcile p99 below 1 s once the burst is created, no idle writes.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.own_plane import own_plane
from plane_fixtures import new_namespace
from scale_run import run_burst
from workplaces import open_workplace

IDLE_SECONDS = 30.0
LONGEST_SECONDS = 1800.0


def run(jobs: int = 1000) -> None:
    """Start everything, submit the burst, print what it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with own_plane(folder) as plane:
            namespace = new_namespace(plane.cluster, "scale")
            with open_workplace(plane, namespace, folder) as workplace:
                figures = run_burst(
                    plane, workplace, jobs, idle_seconds=IDLE_SECONDS, seconds=LONGEST_SECONDS
                )
        print(json.dumps({"benchmark": "operator_scale", **asdict(figures)}))

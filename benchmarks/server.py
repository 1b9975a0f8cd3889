"""One replica of the status server under 1,000 reports a second with 200 watchers.

The load comes from the same machine, so its processors are shared. Nothing may be lost of the last
state, neither for watchers nor in the statuses.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.own_plane import own_plane
from plane_fixtures import new_namespace
from reporting_jobs import open_server_place
from server_load import run_load

JOBS, PODS, WATCHERS = 100, 5, 200
LOADS = ((1000.0, False), (250.0, True))
"""Reports a second, and whether each comes over a connection of its own, as those of workers do: a
TLS handshake costs both sides more than a report."""
SECONDS = 30.0


def run() -> None:
    """Start a control plane and the server, load them, and print the figures."""
    # the defaults of the process, where tests have shorter times
    settings = {
        "QUANTFLEET_WRITE_SECONDS": "10",
        "QUANTFLEET_TOKEN_CACHE_SECONDS": "20",
        "QUANTFLEET_REPORTS_PER_SECOND": "4",
    }
    with tempfile.TemporaryDirectory() as name, own_plane(Path(name)) as plane:
        for number, (a_second, fresh) in enumerate(LOADS):
            namespace = new_namespace(plane.cluster, "load")
            folder = Path(name) / f"server-{number}"
            folder.mkdir()
            with open_server_place(plane, namespace, folder, settings=settings) as place:
                figures = run_load(
                    place,
                    jobs=JOBS,
                    pods=PODS,
                    watchers=WATCHERS,
                    a_second=a_second,
                    seconds=SECONDS,
                    fresh=fresh,
                )
            told = {"benchmark": "server", "jobs": JOBS, "pods": PODS, "fresh": fresh}
            print(json.dumps({**told, **asdict(figures)}), flush=True)

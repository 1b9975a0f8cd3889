"""Many QuantizationJobs in one burst, workers simulated; what the operator needed for them.

Used by the benchmark with a thousand jobs and by the suite with fewer.
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from child_process import wait_for
from control_plane import OPERATOR_USER, ControlPlane
from operator_process import OperatorProcess
from quantization_jobs import publishes
from status_history import truth
from workplaces import Workplace

SUBMITTERS = 8
QUIET_SECONDS = 3.0
LATER_JOBS = 10
"""Submitted one after another when the burst is over: what a user then sees of the operator."""
BUCKET = re.compile(r'^quantfleet_reconcile_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFigures:
    """What a burst of jobs took."""

    jobs: int
    submit_seconds: float
    all_terminal_seconds: float
    """From the first creation until the last job was Complete."""
    operator_peak_bytes: int
    reconcile_p99_seconds: float
    """Upper bound, from the histogram, of looks at jobs that came after the burst."""
    requests_a_job: float
    writes_a_job: float
    idle_writes: int
    """Writes of the operator in `idle_seconds` after the end."""


def run_burst(
    plane: ControlPlane, workplace: Workplace, jobs: int, *, idle_seconds: float, seconds: float
) -> ScaleFigures:
    """Create the jobs as fast as the API server takes them, and wait until all are Complete."""
    before = len(plane.audited(OPERATOR_USER))
    begun = time.monotonic()

    def submit(number: int) -> None:
        workplace.submit("burst", behaviour=publishes, workers=2)

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(submit, range(jobs)))
    submitted = time.monotonic()
    wait_for(
        f"{jobs} jobs complete",
        lambda: completed(workplace) >= jobs,
        seconds=seconds,
        every=1.0,
    )
    ended = time.monotonic()
    wait_for("quiet", lambda: writes_meanwhile(plane, QUIET_SECONDS) == 0, seconds=120)
    made = plane.audited(OPERATOR_USER)[before:]
    buckets = reconcile_buckets(workplace.operator)
    for number in range(LATER_JOBS):
        submit(number)
    wait_for("later jobs complete", lambda: completed(workplace) >= jobs + LATER_JOBS, every=0.5)
    wait_for("quiet", lambda: writes_meanwhile(plane, QUIET_SECONDS) == 0, seconds=120)
    return ScaleFigures(
        jobs=jobs,
        submit_seconds=submitted - begun,
        all_terminal_seconds=ended - begun,
        operator_peak_bytes=peak_bytes(workplace.operator),
        reconcile_p99_seconds=quantile(0.99, buckets, reconcile_buckets(workplace.operator)),
        requests_a_job=len(made) / jobs,
        writes_a_job=sum(is_write(entry["verb"]) for entry in made) / jobs,
        idle_writes=writes_meanwhile(plane, idle_seconds),
    )


def completed(workplace: Workplace) -> int:
    """How many jobs of the namespace are Complete."""
    found = workplace.cluster.list("quantizationjobs", namespace=workplace.namespace)
    return sum(truth(job.get("status", {}), "Complete") == "True" for job in found)


def is_write(verb: str) -> bool:
    return verb not in ("get", "list", "watch")


def writes_meanwhile(plane: ControlPlane, seconds: float) -> int:
    """Writes of the operator within some seconds in which nothing happens."""
    before = sum(is_write(entry["verb"]) for entry in plane.audited(OPERATOR_USER))
    time.sleep(seconds)  # the absence of an event has no condition to wait for
    return sum(is_write(entry["verb"]) for entry in plane.audited(OPERATOR_USER)) - before


def peak_bytes(operator: OperatorProcess) -> int:
    """The most memory that the process ever had resident."""
    assert operator.child is not None
    status = Path(f"/proc/{operator.child.process.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024


def reconcile_buckets(operator: OperatorProcess) -> dict[float, float]:
    """Cumulative counts of the reconcile time, by upper bound in seconds."""
    return {float(bound): float(count) for bound, count in BUCKET.findall(operator.metrics())}


def quantile(share: float, before: dict[float, float], after: dict[float, float]) -> float:
    """Upper bound of a quantile of what was counted between two readings of a histogram."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = max(counts.values())
    return min((bound for bound, count in counts.items() if count >= share * total), default=0.0)

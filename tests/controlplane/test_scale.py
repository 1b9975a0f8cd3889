"""A burst of jobs; the benchmark has a thousand of them and says what each bound is (T16)."""

from pathlib import Path

import pytest

from control_plane import ControlPlane
from scale_run import run_burst
from workplaces import open_workplace

pytestmark = pytest.mark.controlplane

JOBS = 40
MOST_BYTES = 400 << 20
MOST_REQUESTS = 30.0


def test_t16_a_burst_of_jobs_ends_well_and_costs_a_bounded_number_of_requests(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    with open_workplace(plane, namespace, tmp_path) as workplace:
        figures = run_burst(plane, workplace, JOBS, idle_seconds=5.0, seconds=200)
    assert figures.operator_peak_bytes < MOST_BYTES
    assert figures.requests_a_job <= MOST_REQUESTS
    assert figures.idle_writes == 0

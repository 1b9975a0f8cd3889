"""Names and labels of children at the limits of what a job may be called (C13, T10)."""

import re
from dataclasses import replace

import pytest

from quantfleet_api.errors import InvalidInput
from quantfleet_api.names import (
    MOST_ATTEMPTS,
    MOST_NAME,
    MOST_WORKERS,
    child_name,
    fits,
    host_name,
    job_name,
)
from quantfleet_operator.admission import admit
from quantfleet_operator.manifests.job import attempt_job
from reconcile_builders import SETTINGS, UID, view

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label that may also name a Service."""
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@pytest.mark.parametrize("workers", [1, 1000, MOST_WORKERS])
@pytest.mark.parametrize("name", ["n", "n" * MOST_NAME])
def test_every_name_of_the_largest_gang_fits(name: str, workers: int) -> None:
    job = admit(replace(view(workers=workers), name=name), SETTINGS)
    manifest = attempt_job(job, MOST_ATTEMPTS, SETTINGS)
    host = host_name(name, UID, MOST_ATTEMPTS, workers - 1)
    assert host == f"{manifest['metadata']['name']}-{workers - 1}"
    for found in (host, job_name(name, UID, 1), child_name(name, UID)):
        assert LABEL.fullmatch(found), found
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert all(LABEL_VALUE.fullmatch(value) for value in labels.values())


def test_a_name_that_is_too_long_is_refused_though_no_schema_did() -> None:
    assert not fits("n" * (MOST_NAME + 1), 1)
    with pytest.raises(InvalidInput, match=r"metadata\.name"):
        admit(replace(view(), name="n" * (MOST_NAME + 1)), SETTINGS)

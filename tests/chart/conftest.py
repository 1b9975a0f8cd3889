"""Control planes that the chart, and nothing else, puts our objects into."""

from collections.abc import Iterator

import pytest

import pod_states
from control_plane import ControlPlane, MissingPrograms, control_plane


@pytest.fixture(scope="module")
def bare_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane without our CRD, with two nodes."""
    try:
        with control_plane(tmp_path_factory.mktemp("bare"), before_controllers=[]) as running:
            pod_states.add_nodes(running.cluster, 2)
            yield running
    except MissingPrograms as missing:
        pytest.skip(str(missing))

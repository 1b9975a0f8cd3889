"""A control plane with our CRD and fake nodes for one benchmark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

import pod_states
from control_plane import ControlPlane, control_plane
from plane_fixtures import DEFINITION, NODES


@contextmanager
def own_plane(folder: Path) -> Iterator[ControlPlane]:
    """Started for the time of a benchmark; its state lies below `folder`."""
    definition = yaml.safe_load(DEFINITION.read_text())
    with control_plane(folder / "plane", before_controllers=[definition]) as plane:
        pod_states.add_nodes(plane.cluster, NODES)
        yield plane

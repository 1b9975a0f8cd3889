"""Fixtures of the tests on a real control plane; tests/conftest.py hands them to every test.

One control plane a pytest process, and a namespace of its own for each test that asks for one.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

import pod_states
from cluster_access import Cluster, Json
from control_plane import (
    ControlPlane,
    MissingPrograms,
    control_plane,
    running_plane,
    wait_namespace_usable,
)
from fault_proxy import FaultProxy, fault_proxy
from reporting_jobs import ServerPlace, open_server_place
from simulated_kubelet import SimulatedKubelet, simulated_kubelet, starts_none
from workplaces import Workplace, open_workplace

REPOSITORY = Path(__file__).resolve().parents[2]
DEFINITION = REPOSITORY / "crds" / "quantizationjobs.yaml"
NODES = 4
DEVICES = {"huawei.com/Ascend910": "64", "nvidia.com/gpu": "64"}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane with four fake nodes and, where it exists, our CRD.

    `QUANTFLEET_KUBECONFIG` names the admin's kubeconfig of one that runs already and has both.
    (Not KUBECONFIG: these tests must never reach a cluster that somebody happens to work with.)
    """
    given = os.environ.get("QUANTFLEET_KUBECONFIG")
    if given:
        yield running_plane(Path(given))
        return
    folder = tmp_path_factory.mktemp("plane")
    definitions = [yaml.safe_load(DEFINITION.read_text())] if DEFINITION.exists() else []
    try:
        with control_plane(folder, before_controllers=definitions) as running:
            pod_states.add_nodes(running.cluster, NODES, capacity=DEVICES)
            yield running
    except MissingPrograms as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> Cluster:
    """The running control plane as its admin."""
    return plane.cluster


def new_namespace(cluster: Cluster, prefix: str = "test") -> str:
    """Make a namespace that pods can be created in."""
    name = f"{prefix}-{os.getpid()}-{next(_numbers)}"
    created: Json = {"metadata": {"name": name}}
    cluster.create("namespaces", created)
    wait_namespace_usable(cluster, name)
    return name


@pytest.fixture(scope="session")
def workplace(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """An operator that all tests share which do not break it; each submits jobs of its own."""
    folder = tmp_path_factory.mktemp("operator")
    with open_workplace(plane, new_namespace(plane.cluster, "shared"), folder) as opened:
        yield opened


@pytest.fixture
def own_workplace(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Workplace]:
    """An operator of the test's own, to be killed, in the test's own namespace."""
    with open_workplace(plane, namespace, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="session")
def server_place(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerPlace]:
    """A status server that all tests share which do not break it."""
    folder = tmp_path_factory.mktemp("server")
    with open_server_place(plane, new_namespace(plane.cluster, "server"), folder) as opened:
        yield opened


@pytest.fixture
def own_server_place(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[ServerPlace]:
    """A status server of the test's own, to be killed, for the test's own namespace."""
    with open_server_place(plane, namespace, tmp_path) as opened:
        yield opened


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[FaultProxy]:
    """A proxy before the API server."""
    with fault_proxy(plane.server, plane.authority) as running:
        yield running


@pytest.fixture
def behind_proxy(
    plane: ControlPlane, namespace: str, tmp_path: Path, proxy: FaultProxy
) -> Iterator[Workplace]:
    """An operator of the test's own that reaches the API server through `proxy` only."""
    with open_workplace(plane, namespace, tmp_path, server=proxy.url) as opened:
        yield opened


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own; its deletion is asked for at the end, not waited for."""
    name = new_namespace(cluster)
    yield name
    with suppress(OSError):
        cluster.delete("namespaces", name)


@pytest.fixture
def kubelet(cluster: Cluster, namespace: str) -> Iterator[SimulatedKubelet]:
    """Lets go of deleted pods in the test's namespace; starts no pod by itself."""
    with simulated_kubelet(cluster, namespace=namespace, starts=starts_none) as running:
        yield running

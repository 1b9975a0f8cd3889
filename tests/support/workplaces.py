"""A namespace with claims, a simulated kubelet and the operator: where jobs of tests run."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import quantization_jobs
from cluster_access import Cluster, Json
from control_plane import OPERATOR_TOKEN, ControlPlane
from operator_process import OperatorProcess, operator_process
from quantfleet_api.names import JOB_NAME_LABEL
from quantization_jobs import Quantization, manifest
from simulated_kubelet import Behaviour, Exit, SimulatedKubelet, simulated_kubelet


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Jobs without a behaviour are started and ended by the test; the others by the kubelet."""

    cluster: Cluster
    namespace: str
    operator: OperatorProcess
    kubelet: SimulatedKubelet
    behaviours: dict[str, Behaviour]
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def submit(
        self,
        prefix: str = "job",
        *,
        behaviour: Behaviour | None = None,
        policy: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Quantization:
        """Create a QuantizationJob under a name of its own; `more` as in `manifest`."""
        name = f"{prefix}-{next(self.numbers)}"
        if behaviour is not None:
            self.behaviours[name] = behaviour
        body = manifest(name, policy=policy, **more)
        return quantization_jobs.submit(self.cluster, self.namespace, body)

    def submit_running(self, prefix: str = "job", **more: Any) -> tuple[Quantization, list[Json]]:
        """A job whose first attempt runs, and its pods by index."""
        job = self.submit(prefix, **more)
        return job, job.wait_running(1)


@contextmanager
def open_workplace(
    plane: ControlPlane,
    namespace: str,
    folder: Path,
    *,
    server: str | None = None,
    token: str = OPERATOR_TOKEN,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Workplace]:
    """Claims, kubelet and operator for a namespace; `server` is a proxy to go through."""
    quantization_jobs.add_claims(plane.cluster, namespace)
    kubeconfig = plane.kubeconfig(folder / "kubeconfig", token=token, server=server)
    behaviours: dict[str, Behaviour] = {}

    def behave(pod: Json) -> Exit | None:
        behaviour = behaviours.get(pod["metadata"].get("labels", {}).get(JOB_NAME_LABEL, ""))
        return behaviour(pod) if behaviour is not None else None

    def starts(pod: Json) -> bool:
        return pod["metadata"].get("labels", {}).get(JOB_NAME_LABEL) in behaviours

    with (
        simulated_kubelet(
            plane.cluster, namespace=namespace, behaviour=behave, starts=starts
        ) as kubelet,
        operator_process(
            kubeconfig, folder, namespaces=(namespace,), settings=settings
        ) as operator,
    ):
        yield Workplace(
            cluster=plane.cluster,
            namespace=namespace,
            operator=operator,
            kubelet=kubelet,
            behaviours=behaviours,
        )

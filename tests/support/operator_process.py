"""The operator as its own process, as in a cluster: started, killed and asked by tests."""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import child_process
from child_process import Child, wait_for

IMAGE = "none.invalid/quantfleet-worker:test"
READY_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class OperatorProcess:
    """The operator that runs, or ran; `start` may follow `kill`."""

    kubeconfig: Path
    namespaces: tuple[str, ...]
    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    child: Child | None = None
    liveness_port: int = 0
    metrics_port: int = 0

    def start(self, *, wait: bool = True) -> None:
        """Start it; unless told otherwise, until it says that it is ready."""
        self.liveness_port, self.metrics_port = child_process.free_port(), child_process.free_port()
        own = {
            "KUBECONFIG": str(self.kubeconfig),
            "QUANTFLEET_WATCH_NAMESPACES": ",".join(self.namespaces),
            "QUANTFLEET_WORKER_IMAGE": IMAGE,
            "QUANTFLEET_METRICS_PORT": str(self.metrics_port),
            "QUANTFLEET_LIVENESS_PORT": str(self.liveness_port),
            "QUANTFLEET_PROGRESS_URL": "",
            "PYTHONUNBUFFERED": "1",
        }
        self.child = child_process.start(
            "operator",
            [sys.executable, "-m", "quantfleet_operator"],
            folder=self.folder,
            environment={**os.environ, **own, **self.settings},
        )
        if wait:
            self.wait_ready()

    def wait_ready(self, *, seconds: float = READY_SECONDS) -> None:
        """Until /readyz says yes; an operator that ended before raises with its last words."""

        def ready() -> bool:
            if not self.alive():
                raise RuntimeError(f"the operator ended:\n{self.log()}")
            return self.answers("readyz")

        try:
            wait_for("operator ready", ready, seconds=seconds)
        except TimeoutError as late:
            raise TimeoutError(f"{late}\n{self.log()}") from late

    def alive(self) -> bool:
        return self.child is not None and self.child.alive()

    def answers(self, path: str) -> bool:
        """Whether /healthz or /readyz is 200."""
        url = f"http://127.0.0.1:{self.liveness_port}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def metrics(self) -> str:
        """The Prometheus text."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that have these labels."""
        return child_process.metric_of(self.metrics(), name, labels)

    def ensure_started(self) -> None:
        """Start it if it is dead, and wait until it is ready."""
        if not self.alive():
            self.start(wait=False)
        self.wait_ready()

    def kill_at_once(self) -> None:
        """SIGKILL without waiting, from any thread."""
        if self.child is not None and self.child.alive():
            self.child.process.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.child is not None:
            child_process.kill(self.child)

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        assert self.child is not None
        return child_process.stop(self.child)

    def log(self) -> str:
        return "" if self.child is None else self.child.tail(80)


@contextmanager
def operator_process(
    kubeconfig: Path,
    folder: Path,
    *,
    namespaces: tuple[str, ...],
    settings: Mapping[str, str] | None = None,
) -> Iterator[OperatorProcess]:
    """An operator that runs and is ready; killed at the end."""
    running = OperatorProcess(
        kubeconfig=kubeconfig, namespaces=namespaces, folder=folder, settings=settings or {}
    )
    try:
        running.start()
        yield running
    finally:
        running.kill()

"""Worker pods as processes of this machine: the environment that the operator gives, one folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine_runs import Manifest
from quantfleet_api.loading import parse_job
from quantfleet_api.termination import Termination, parse_termination
from quantfleet_worker.exchange import open_store
from quantfleet_worker.messages import Rendezvous
from quantfleet_worker.work_folder import work_path


def free_port() -> int:
    """A port where nobody listens."""
    return int(open_store(Rendezvous(rank=0, world_size=1, host="127.0.0.1", port=0)).port)


class Pods:
    """Starts pods of one job over the claims below `root`; every process it starts is ended."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.spec = root / "job.json"
        self.spec.write_text(json.dumps(parse_job(manifest).model_dump(mode="json", by_alias=True)))
        self.port = free_port()
        self.started: list[subprocess.Popen[str]] = []
        self.index: dict[int, int] = {}
        self.said: dict[int, str] = {}  # by index, of the latest pod that ended

    def start(
        self,
        index: int,
        *,
        pods: int,
        processes: int = 1,
        attempt: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """One pod of an attempt."""
        contract = {
            "QUANTFLEET_SPEC": str(self.spec),
            "QUANTFLEET_VOLUMES": str(self.root),
            "QUANTFLEET_JOB_UID": "0b5c7d1e-0000-4000-8000-000000000000",
            "QUANTFLEET_ATTEMPT": str(attempt),
            "JOB_COMPLETION_INDEX": str(index),
            "NNODES": str(pods),
            "NPROC_PER_NODE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "QUANTFLEET_TERMINATION_LOG": str(self.words(index)),
        }
        self.words(index).unlink(missing_ok=True)
        pod = subprocess.Popen(
            [sys.executable, "-m", "quantfleet_worker"],
            env=os.environ | contract | dict(environment or {}),
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(pod)
        self.index[pod.pid] = index
        return pod

    def start_all(
        self, pods: int, processes: int = 1, attempt: int = 1, **options: Any
    ) -> list[subprocess.Popen[str]]:
        """All pods of an attempt."""
        return [
            self.start(index, pods=pods, processes=processes, attempt=attempt, **options)
            for index in range(pods)
        ]

    def words(self, index: int) -> Path:
        """Where the pod leaves its last words."""
        return self.root / f"words-{index}.json"

    def ends(self, pod: subprocess.Popen[str]) -> tuple[int, Termination]:
        """Exit code and last words."""
        index = self.index[pod.pid]
        self.said[index] = pod.communicate(timeout=120)[1]
        assert self.words(index).is_file(), self.said[index]
        return pod.returncode, parse_termination(self.words(index).read_text())

    @property
    def output(self) -> Path:
        """What is published."""
        return self.root / "out" / "result"

    def wait_for(self, pattern: str, content: str = "") -> None:
        """Until a file of the work folder is there, and holds `content`; pods must live so long."""
        while True:
            found = list(work_path(self.output).glob(pattern))
            if found and content in _text(found[0]):
                return
            assert all(pod.poll() is None for pod in self.started), f"ended before {pattern}"

    def rank_process(self, rank: int) -> int:
        """The process of a rank, told by its log."""
        return next(
            process
            for process in self.processes()
            if _link(f"/proc/{process}/fd/1").endswith(f"/rank-{rank}.log")
        )

    def processes(self, index: int | None = None) -> list[int]:
        """All processes of the job's pods, or of one pod."""
        wanted = [f"QUANTFLEET_SPEC={self.spec}"]
        wanted += [] if index is None else [f"JOB_COMPLETION_INDEX={index}"]
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                variables = _text(entry / "environ").split("\0")
                if all(variable in variables for variable in wanted):
                    found.append(int(entry.name))
        return found

    def kill_pod(self, index: int) -> None:
        """Every process of a pod, at once, as when its node loses power."""
        for process in self.processes(index):
            os.kill(process, signal.SIGKILL)


@contextmanager
def pods_of(root: Path, manifest: Manifest) -> Iterator[Pods]:
    """Pods over `root`, all of them gone at the end of the block."""
    found = Pods(root, manifest)
    try:
        yield found
    finally:
        for pod in found.started:
            pod.kill()
            pod.communicate()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""

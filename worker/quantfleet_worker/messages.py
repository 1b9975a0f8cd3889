"""What launcher, planning process and ranks tell each other.

Imports no torch: the launcher does without it.
"""

from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks meet; rank 0 listens (port 0 = any free one, then told to the others)."""

    rank: int
    world_size: int
    host: str
    port: int
    processes: int = 1  # ranks of a pod
    seconds: float = 600.0  # how long the others are waited for

    @property
    def pod(self) -> int:
        """The pod of this rank; on one machine, the only one."""
        return self.rank // self.processes

    @property
    def local_ranks(self) -> range:
        """The ranks of this pod, this one among them."""
        return range(self.pod * self.processes, (self.pod + 1) * self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Which ranks of a gang are started here, and where all of them meet."""

    ranks: range
    host: str = "127.0.0.1"
    port: int = 0
    seconds: float = 600.0  # how long the others are waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """What the launcher tells a rank."""

    rendezvous: Rendezvous
    local_rank: int
    threads: int
    output: Path
    attempt: int
    model_folder: Path
    job: str  # the resolved manifest as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the launcher needs to know: plan and resolved job as JSON, tokens as bytes."""

    plan: str
    digest: str
    job: str
    tokens: bytes
    model_folder: Path
    output: Path
    world_size: int
    threads: int
    num_layers: int
    warnings: tuple[str, ...]  # what will not be as asked for (law L11)
    notes: tuple[str, ...]  # worth knowing, but without influence on the result
    memory_bytes: int  # that the ranks started here need together, as `quantfleet plan` sums it up
    disk_bytes: int  # that the run needs where its output goes


def start_planner(connection: Connection, *arguments: Any) -> None:
    """Entry of the planning process; only the fork server's children import what it needs."""
    from quantfleet_worker.planner import planner_main

    planner_main(connection, *arguments)


def start_rank(connection: Connection, job: RankJob) -> None:
    """Entry of a rank's process."""
    from quantfleet_worker.rank import rank_main

    rank_main(connection, job)

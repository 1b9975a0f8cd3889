"""Watches the ranks of a run from inside: which inputs each layer saw, how large transfers were.

The ranks are processes of their own. `watched_ranks` and `small_chunks` exchange the entries by
which they are started for those of this module, which put a thin layer around the real ones.
"""

import functools
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from quantfleet_worker import gang, launch
from quantfleet_worker.messages import RankJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One rank's: inputs by layer index (a digest for each call), bytes of each transfer."""

    inputs: dict[int, list[str]]
    transfers: list[int]


@contextmanager
def watched_ranks(folder: Path) -> Iterator[None]:
    """Ranks started in the block leave what they saw in `folder`; read it with `seen`."""
    folder.mkdir(exist_ok=True)
    entry = functools.partial(start_watched_rank, folder=folder)
    with mock.patch.object(gang, "start_rank", entry):
        yield


@contextmanager
def small_chunks(chunk_bytes: int) -> Iterator[None]:
    """Plans made in the block allow only transfers of that many bytes."""
    entry = functools.partial(start_planner_of_chunks, chunk_bytes=chunk_bytes)
    with mock.patch.object(launch, "start_planner", entry):
        yield


def seen(folder: Path) -> list[Seen]:
    """What each rank saw, by rank."""
    found = []
    for rank in range(len(list(folder.iterdir()))):
        content = json.loads((folder / f"{rank}.json").read_text())
        inputs = {int(layer): digests for layer, digests in content["inputs"].items()}
        found.append(Seen(inputs=inputs, transfers=content["transfers"]))
    return found


def start_planner_of_chunks(connection: Connection, *arguments: Any, chunk_bytes: int) -> None:
    """Entry of a planning process with other chunks."""
    from quantfleet_worker import planner, planning

    planner.make_plan = functools.partial(planning.make_plan, chunk_bytes=chunk_bytes)
    planner.planner_main(connection, *arguments)


def start_watched_rank(connection: Connection, job: RankJob, *, folder: Path) -> None:
    """Entry of a rank that notes what it sees."""
    from quantfleet_worker import rank, run
    from quantfleet_worker.models.layers import Blocks

    inputs: dict[int, list[str]] = {}
    transfers: list[int] = []
    layer = 0

    def process_layer(engine: Any, plan: Any) -> None:
        nonlocal layer
        layer = plan.index
        original_layer(engine, plan)

    def run_block(self: Blocks, module: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        content = hidden.contiguous().view(torch.uint8).numpy().tobytes()
        inputs.setdefault(layer, []).append(hashlib.sha256(content).hexdigest())
        return original_block(self, module, hidden)

    def run_rank(*arguments: Any) -> None:
        original_rank(*arguments)
        found = {"inputs": inputs, "transfers": transfers}
        (folder / f"{job.rendezvous.rank}.json").write_text(json.dumps(found))

    original_layer, original_block, original_rank = run.process_layer, Blocks.run, rank.run_rank
    run.process_layer = process_layer
    Blocks.run = run_block  # type: ignore[method-assign]
    rank.run_rank = run_rank
    _note_transfers(transfers)
    rank.rank_main(connection, job)


def _note_transfers(transfers: list[int]) -> None:
    import torch.distributed as dist

    broadcast, all_to_all = dist.broadcast, dist.all_to_all_single

    def noted_broadcast(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        transfers.append(tensor.nbytes)
        return broadcast(tensor, *arguments, **options)

    def noted_all_to_all(out: torch.Tensor, given: torch.Tensor, *arguments: Any) -> Any:
        transfers.append(max(out.nbytes, given.nbytes))
        return all_to_all(out, given, *arguments)

    dist.broadcast, dist.all_to_all_single = noted_broadcast, noted_all_to_all

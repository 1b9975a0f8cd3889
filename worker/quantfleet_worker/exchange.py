"""Moves bytes between ranks; the only user of torch.distributed.

Called by the engine in plan order. What moves is uint8 and is merged by our own code, so gloo,
NCCL and HCCL behave alike. Nobody waits inside a collective for compute: `phase` waits in the
store until every rank is ready, and only then are transfers made. `liveness.py` names a lost rank.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import sleep

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from quantfleet_api.errors import Interrupted, TryAgain
from quantfleet_worker.local_store import LocalStore
from quantfleet_worker.messages import Rendezvous

TRANSFER_TIMEOUT = timedelta(minutes=5)
"""Covers one transfer that all ranks have entered, never a computation."""
LONGEST_PAUSE = 0.02  # seconds between two looks at a record that somebody will put
_STOPPED = "stopped"  # what a phase may be agreed to be


class TransferFailed(TryAgain):
    """A peer or the network is gone, and it is not said which."""


@dataclass(slots=True)
class Traffic:
    """What this rank sent to others."""

    num_bytes: int = 0
    num_transfers: int = 0
    num_phases: int = 0
    phases_of_layer: int = 0
    most_phases_of_layer: int = 0


def open_store(
    rendezvous: Rendezvous, *, port: int | None = None, timeout: timedelta = TRANSFER_TIMEOUT
) -> TCPStore:
    """The key-value store that rank 0 hosts; `store.port` tells the real port.

    With `port`, a further client of a store that exists. The legacy server (not libuv), since not
    every build of torch has libuv. Rank 0 does not wait for a DNS to know its own name.
    """
    with retriable("store"):
        return TCPStore(
            "127.0.0.1" if rendezvous.rank == 0 else rendezvous.host,
            rendezvous.port if port is None else port,
            is_master=rendezvous.rank == 0 and port is None,
            timeout=timeout,
            wait_for_workers=False,
            use_libuv=False,
        )


SharedStore = TCPStore
Store = SharedStore | LocalStore


class Exchange:
    """One rank's end of the gang. `should_stop` raises when this rank was asked to stop."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        store: TCPStore | None,  # None where this rank is alone
        *,
        backend: str,
        chunk_bytes: int,
        device: torch.device,
        should_stop: Callable[[], None],
    ) -> None:
        self.rank, self.world_size = rendezvous.rank, rendezvous.world_size
        self.traffic = Traffic()
        self._store: Store = LocalStore() if store is None else store
        self._chunk_bytes, self._device = chunk_bytes, device
        self._should_stop = should_stop
        self._sequence = 0
        # a phase starts when the last rank notices it; the store answers about 20,000 a second
        self._impatience = min(LONGEST_PAUSE, 0.001 + 0.0002 * self.world_size)
        if store is not None:
            if rendezvous.host in ("127.0.0.1", "localhost"):
                # gloo would look up this machine's name, which need not resolve
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            with retriable("group"):
                dist.init_process_group(
                    backend,  # gloo | nccl | hccl
                    store=PrefixStore("group", store),
                    rank=self.rank,
                    world_size=self.world_size,
                    timeout=TRANSFER_TIMEOUT,
                )

    # records: small values of any length, under a key that only one rank sets

    def put(self, key: str, value: str) -> None:
        """Publish a record."""
        with retriable("store"):
            self._store.set(f"record/{key}", value)

    def get(self, key: str) -> str:
        """Wait for a record, however long its maker needs."""
        with retriable("store"):
            wait_for(self._store, [f"record/{key}"], self._any_stop)
            value: bytes = self._store.get(f"record/{key}")
            return value.decode()

    def last_word(self, key: str, *, rank: int) -> str | None:
        """A record that `rank` makes even after a stop; None once it will make none any more."""
        made, silent = [f"record/{key}"], [f"silent/{rank}"]
        pause = 0.0005
        with retriable("store"):
            while not self._store.check(made):
                # asked in this order: a silent rank has made all records that it ever makes
                if self._store.check(silent) and not self._store.check(made):
                    return None
                sleep(pause)
                pause = min(pause * 1.5, LONGEST_PAUSE)
            value: bytes = self._store.get(made[0])
            return value.decode()

    def tick(self, key: str) -> int:
        """Count one more under a key; how many have."""
        with retriable("store"):
            return int(self._store.add(f"count/{key}", 1))

    def stop_everyone(self) -> None:
        """This rank was asked to stop: whoever waits for its records would wait for ever."""
        with retriable("store"):
            self._store.set(f"silent/{self.rank}", "1")
            self._store.set(_STOPPED, "1")

    def _any_stop(self) -> None:
        self._should_stop()
        if self._store.check([_STOPPED]):
            raise Interrupted("a peer was stopped")

    # phases and transfers

    def wait_for_all(self, phase: str) -> None:
        """Begin a phase: return when every rank has come to it. Transfers follow.

        All ranks go on or none does: a transfer that one leaves out would fail in the others.
        """
        self._sequence += 1
        key = f"phase/{self._sequence}"
        with retriable(phase):
            if self._store.add(f"{key}/ready", 1) == self.world_size:
                self._store.compare_set(f"{key}/go", "", phase)
            try:
                wait_for(self._store, [f"{key}/go"], self._any_stop, longest=self._impatience)
            except Interrupted:
                self._store.compare_set(f"{key}/go", "", _STOPPED)
            agreed = self._store.get(f"{key}/go").decode()
            if agreed == _STOPPED:
                raise Interrupted("stopped on request, of this rank or of a peer")
            if self.rank == 0 and self._sequence > 1:
                # everyone has passed the phase before this one
                self._store.delete_key(f"phase/{self._sequence - 1}/ready")
                self._store.delete_key(f"phase/{self._sequence - 1}/go")
        assert agreed == phase, f"rank {self.rank} is in phase {phase}, a peer in {agreed}"
        self.traffic.num_phases += 1
        self.traffic.phases_of_layer += 1
        self.traffic.most_phases_of_layer = max(
            self.traffic.most_phases_of_layer, self.traffic.phases_of_layer
        )

    def next_layer(self) -> None:
        """Phases are counted a layer (law L4)."""
        self.traffic.phases_of_layer = 0

    def all_to_all(
        self, outgoing: Sequence[Tensor], num_bytes: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Send `outgoing[r]` (uint8) to each rank r; get what each sent here, by rank.

        `num_bytes[s][d]` is what s sends to d: all ranks know it from plan and layout, and so make
        the same number of rounds of at most `chunk_bytes`.
        """
        received = [
            outgoing[rank]
            if rank == self.rank
            else torch.empty(num_bytes[rank][self.rank], dtype=torch.uint8)
            for rank in range(self.world_size)
        ]
        longest = max(
            (size for s, row in enumerate(num_bytes) for d, size in enumerate(row) if s != d),
            default=0,
        )
        piece = max(1, self._chunk_bytes // self.world_size)
        for start in range(0, longest, piece):
            self._one_round(outgoing, received, start, start + piece)
        return received

    def _one_round(
        self, outgoing: Sequence[Tensor], received: Sequence[Tensor], start: int, stop: int
    ) -> None:
        sent = [
            buffer[0:0] if rank == self.rank else buffer[start:stop]
            for rank, buffer in enumerate(outgoing)
        ]
        sizes = [
            0 if rank == self.rank else len(buffer[start:stop])
            for rank, buffer in enumerate(received)
        ]
        target = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        with retriable("all_to_all"):
            dist.all_to_all_single(
                target, torch.cat(sent).to(self._device), sizes, [len(part) for part in sent]
            )
        position = 0
        for rank, size in enumerate(sizes):
            received[rank][start : start + size] = target[position : position + size].cpu()
            position += size
        self.traffic.num_transfers += 1
        self.traffic.num_bytes += sum(len(part) for part in sent)

    def publish(self, own: Tensor, num_bytes: Sequence[int]) -> list[Tensor]:
        """Every rank r gives `num_bytes[r]` bytes to all; get them all, by rank."""
        blobs = [
            own if rank == self.rank else torch.empty(size, dtype=torch.uint8)
            for rank, size in enumerate(num_bytes)
        ]
        if self.world_size == 1:
            return blobs
        for rank, blob in enumerate(blobs):
            for start in range(0, len(blob), self._chunk_bytes):
                chunk = blob[start : start + self._chunk_bytes]
                on_device = chunk.to(self._device)
                with retriable("broadcast"):
                    dist.broadcast(on_device, src=rank)
                if on_device.data_ptr() != chunk.data_ptr():
                    chunk.copy_(on_device)
                self.traffic.num_transfers += 1
                if rank == self.rank:
                    self.traffic.num_bytes += len(chunk)
        return blobs

    def close(self) -> None:
        """Leave together: rank 0 hosts the store, so it goes last."""
        if self.world_size == 1:
            return
        with retriable("close"):
            if self._store.add("bye", 1) == self.world_size:
                self._store.set("all-said-bye", "1")
            if self.rank == 0:
                wait_for(self._store, ["all-said-bye"], _never)
        dist.destroy_process_group()


def wait_for(
    store: Store,
    keys: list[str],
    should_stop: Callable[[], None],
    *,
    longest: float = LONGEST_PAUSE,
) -> None:
    """Wait for keys without limit; a stop request ends the wait.

    Asks again and again instead of a blocking wait, which would keep the connection from other
    threads of this rank and warns on every time-out. An answer takes about 10 microseconds.
    """
    pause = 0.0005
    while not store.check(keys):
        should_stop()
        sleep(pause)
        pause = min(pause * 1.5, longest)


def _never() -> None:
    """Asks nobody to stop."""


@contextmanager
def retriable(what: str) -> Iterator[None]:
    """A failed transfer means that a peer or the network is gone: try again (75)."""
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TransferFailed(f"exchange failed in {what}: {first_line}") from error

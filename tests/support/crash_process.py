"""The real command as a process, whose ranks crash to order; started by tests with a `Bench`."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import crash_orders
from crash_bench import Bench, manifest_of
from crash_orders import Event, Order


class Command:
    """The real command as a process of its own, in a session of its own, that crashes to order."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.process: subprocess.Popen[str] | None = None
        self.stdout, self.stderr = bench.root / "stdout.txt", bench.root / "stderr.txt"

    def start(self, recipe: str, workers: int, order: Order | None) -> "subprocess.Popen[str]":
        """Start `quantfleet run`."""
        crash_orders.give_order(self._bench.orders, order)
        job = self._bench.root / "job.yaml"
        job.write_text(json.dumps(manifest_of(recipe)))  # JSON is YAML, too
        volumes = [f"{name}={path}" for name, path in self._bench.volumes.items()]
        program = [sys.executable, "-m", "crash_command", "run", str(job)]
        options = [part for volume in volumes for part in ("--volume", volume)]
        with self.stdout.open("w") as stdout, self.stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                [*program, *options, "--workers", str(workers)],
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        return self.process

    def events(self) -> list[Event]:
        """What the ranks passed by so far."""
        return crash_orders.read_events(self._bench.orders)

    def wait_for_hit(self) -> Event:
        """Where the order was carried out; the command must not end before."""
        self._wait_until(lambda: crash_orders.read_hit(self._bench.orders) is not None)
        hit = crash_orders.read_hit(self._bench.orders)
        assert hit is not None
        return hit

    def wait_for(self, event: str, *, ranks: set[int], count: int = 1) -> None:
        """Until each of the ranks has passed by so often."""
        self._wait_until(
            lambda: all(
                sum(e.rank == rank and e.name == event for e in self.events()) >= count
                for rank in ranks
            )
        )

    def wait_for_output(self, text: str) -> None:
        """Until the command has printed it, in capitals or not."""
        self._wait_until(lambda: text in self.stdout.read_text().lower())

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        assert self.process is not None
        pause = threading.Event()
        while not condition():
            assert self.process.poll() is None, self.stderr.read_text()
            pause.wait(0.02)

    def let_go(self) -> None:
        """What was held goes on."""
        (self._bench.orders / "go").touch()

    def close(self) -> None:
        """Leave no process behind, whatever became of the test."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pid in {event.pid for event in self.events()}:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue

"""Programs that tests start and that never outlive them; used by the control plane and operator."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running program and the file that its output goes to."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 40) -> str:
        """The end of its output, for the message of a failed test."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def start(
    name: str, command: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None
) -> Child:
    """Start a program; the kernel kills it when the thread that called this ends."""
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
        )
    return Child(name=name, process=process, log=log)


def kill(child: Child) -> None:
    """SIGKILL, and wait until it is gone."""
    if child.alive():
        child.process.kill()
    child.process.wait(STOP_SECONDS)


def stop(child: Child) -> int:
    """SIGTERM, then SIGKILL for one that does not go; its exit status."""
    if child.alive():
        child.process.send_signal(signal.SIGTERM)
    try:
        return child.process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        kill(child)
        return child.process.wait()


def metric_of(text: str, name: str, labels: Mapping[str, str]) -> float:
    """Sum of the samples of a metric, in a Prometheus text, that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.split("{")[0].split(" ")[0] == name and all(part in line for part in wanted)
    )


def free_port() -> int:
    """A port of the loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(
    what: str, condition: Callable[[], T | None], *, seconds: float = 60.0, every: float = 0.05
) -> T:
    """Ask until the answer is true, and return it; TimeoutError names what did not come about."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what} (last answer: {answer!r})")
        time.sleep(every)

"""What tests tell `crash_points` to do, and what it tells them: files in a folder of the test's.

The environment variable names the folder, since the ranks that read it are forked elsewhere.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FOLDER_VARIABLE = "QF_TEST_CRASH_POINTS"
TOLD_TO_STOP = "told to stop"
ORDER, EVENTS, HIT = "order.json", "events.txt", "hit.json"

Action = Literal["kill", "kill-ranks", "kill-group", "freeze", "hold"]


@dataclass(frozen=True)
class Order:
    """At the `count`-th `event` ("*": any) of `rank`: `action`.

    kill: SIGKILL to this rank. kill-ranks: to every rank. kill-group: to its process group, the
    launcher too. freeze: SIGSTOP to this rank. hold: this thread goes on when the file `go` is
    there.
    """

    rank: int
    event: str
    count: int = 1
    action: Action = "kill"


@dataclass(frozen=True)
class Event:
    """One line of the trace."""

    seconds: float  # monotonic, the same clock for all processes
    pid: int
    attempt: int
    rank: int
    name: str


def give_order(folder: Path, order: Order | None) -> None:
    """Called by the test before a run; forgets what happened before."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ORDER, EVENTS, HIT):
        (folder / name).unlink(missing_ok=True)
    (folder / "go").unlink(missing_ok=True)
    if order is not None:
        (folder / ORDER).write_text(json.dumps(asdict(order)))


def read_events(folder: Path) -> list[Event]:
    """What all ranks did, in the order in which they said so."""
    try:
        lines = (folder / EVENTS).read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        seconds, pid, attempt, rank, name = line.split(" ", 4)
        found.append(Event(float(seconds), int(pid), int(attempt), int(rank), name))
    return found


def read_hit(folder: Path) -> Event | None:
    """Where the order was carried out."""
    try:
        return Event(**json.loads((folder / HIT).read_text()))
    except FileNotFoundError:
        return None

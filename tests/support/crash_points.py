"""Kills or freezes a rank at a chosen moment. For tests only; the engine knows nothing of it.

The fork server of a test preloads this module (`launch.PRELOADED`), which wraps functions of the
engine so that every rank says where it is. What shall happen, and what happened, is in the files
of `crash_orders`.
"""

import functools
import json
import os
import pathlib
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

from crash_orders import (
    EVENTS,
    FOLDER_VARIABLE,
    HIT,
    ORDER,
    TOLD_TO_STOP,
    Action,
    Event,
    Order,
    read_events,
)


class _Self:
    """This process; one lock, since a rank's writer thread says where it is, too."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rank = self.attempt = -1
        self.folder: Path | None = None
        self.order: Order | None = None
        self.count = 0
        self.pass_index = 0

    def begin(self, rank: int, attempt: int) -> None:
        """From here on this process is a rank."""
        self.rank, self.attempt = rank, attempt
        self.folder = Path(os.environ[FOLDER_VARIABLE])
        try:
            self.order = Order(**json.loads((self.folder / ORDER).read_text()))
        except FileNotFoundError:
            self.order = None

    def reach(self, name: str) -> None:
        """This rank is at `name`."""
        if self.folder is None:
            return  # not a rank: the planning process
        with self.lock:
            event = Event(monotonic(), os.getpid(), self.attempt, self.rank, name)
            line = f"{event.seconds} {event.pid} {event.attempt} {event.rank} {name}\n"
            _append(self.folder / EVENTS, line)
            order = self.order
            if order is None or order.rank != self.rank or order.event not in ("*", name):
                return
            self.count += 1
            if self.count != order.count:
                return
            whole = self.folder / f"{HIT}.part"
            whole.write_text(json.dumps(asdict(event)))
            whole.replace(self.folder / HIT)
        _carry_out(order.action, self.folder)


def _append(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, line.encode())
    os.close(file)


def _carry_out(action: Action, folder: Path) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill-ranks":
            ranks = {event.pid for event in read_events(folder)} - {os.getpid()}
            for pid in ranks:
                with suppress(ProcessLookupError):  # it has left already
                    os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill-group":
            os.killpg(0, signal.SIGKILL)
        case "freeze":
            # in a session of its own: a process group that loses its last parent is woken up again
            os.setsid()
            # to this very thread, which else would go on until another one stops the process
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "hold":
            _wait_for_file(folder / "go")


def _wait_for_file(path: Path) -> None:
    """A held rank really does nothing; the test lets it go on by making the file."""
    pause = threading.Event()
    while not path.exists():
        pause.wait(0.01)


me = _Self()


class _HalfFile:
    """Passes writes on in two halves, with a moment between them."""

    def __init__(self, file: BinaryIO, kind: str) -> None:
        self._file, self._kind = file, kind

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        half = len(view) // 2
        done = self._file.write(view[:half])
        self._file.flush()
        me.reach(f"{self._kind}:half")
        return done + self._file.write(view[half:])


def kind_of(path: Path) -> str:
    """What a file of the work folder, or beside the output, is."""
    named = {
        "journal.json": "journal",
        "quantfleet-manifest.json": "manifest",
        "config.json": "config",
    }
    if path.name in named:
        return named[path.name]
    if path.parent.parent.name == "carry":
        return "carry"
    if path.parent.name == "sidecar":
        return "sidecar"
    if path.suffix == ".safetensors":
        return "layer"
    if path.name.endswith("report.json"):
        return "report"
    return "other"


def _wrap(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
    """Says `before` and `after` a call of `owner.name`; {0}, {1} are its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before:
            me.reach(before.format(*args, **kwargs))
        result = original(*args, **kwargs)
        if after:
            me.reach(after.format(*args, **kwargs))
        return result

    setattr(owner, name, wrapped)


def _wrap_files() -> None:
    from quantfleet_worker.work_folder import WorkFolder

    new_file, rename, rmtree = WorkFolder.new_file, pathlib.Path.rename, shutil.rmtree

    @contextmanager
    def watched_file(self: WorkFolder, path: Path) -> Iterator[Any]:
        kind = kind_of(path)
        me.reach(f"{kind}:begin")
        with new_file(self, path) as file:
            yield _HalfFile(file, kind)
            me.reach(f"{kind}:written")

    @functools.wraps(rename)
    def watched_rename(self: Path, target: Path) -> Path:
        kind = "publish" if self.is_dir() else kind_of(Path(target))
        me.reach(f"{kind}:before-rename")
        result = rename(self, target)
        me.reach(f"{kind}:after-rename")
        return result

    @functools.wraps(rmtree)
    def watched_rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
        if Path(path).name.startswith("attempt-"):
            me.reach("removal:begin")
            first, *_ = sorted(Path(path).iterdir())
            rmtree(first) if first.is_dir() else first.unlink()
            me.reach("removal:half")
        rmtree(path, *args, **kwargs)

    WorkFolder.new_file = watched_file  # type: ignore[method-assign, assignment]
    pathlib.Path.rename = watched_rename  # type: ignore[method-assign, assignment]
    shutil.rmtree = watched_rmtree  # type: ignore[assignment]


def _wrap_work() -> None:
    from quantfleet_worker import layer_passes, layer_steps, rank, verify
    from quantfleet_worker.exchange import Exchange
    from quantfleet_worker.models.layers import Blocks

    _begin_with(rank)
    _wrap(Exchange, "wait_for_all", before="phase:{1}", after="go:{1}")
    _wrap(Exchange, "all_to_all", before="transfer:all_to_all", after="sent:all_to_all")
    _wrap(Exchange, "publish", before="transfer:publish", after="sent:publish")
    _wrap(Exchange, "close", before="close")
    _wrap(layer_steps, "solve_task", before="solve:task", after="solved:task")
    _wrap(layer_steps, "solve_site", before="solve:site")
    _wrap(layer_steps, "process_layer", before="layer:{1.index}")
    _wrap(verify, "file_digest", before="verify:file")
    _wrap(verify, "_run_all", before="evaluate")
    _count_solves(layer_steps)
    run_micro_batches, run = layer_passes.run_micro_batches, Blocks.run

    def in_pass(*args: Any, pass_index: int, **kwargs: Any) -> None:
        me.pass_index = pass_index
        run_micro_batches(*args, pass_index=pass_index, **kwargs)
        me.pass_index = 0

    def watched_run(*args: Any, **kwargs: Any) -> Any:
        if me.pass_index:
            me.reach(f"pass{me.pass_index}")
        return run(*args, **kwargs)

    layer_passes.run_micro_batches = in_pass
    Blocks.run = watched_run  # type: ignore[method-assign]


class _Line:
    """A rank's line to its launcher; says when a request to stop has been taken in."""

    def __init__(self, connection: Any) -> None:
        self.send = connection.send
        self._connection, self._stop = connection, False

    def recv(self) -> Any:
        if self._stop:
            me.reach(TOLD_TO_STOP)
        message = self._connection.recv()
        self._stop = message["kind"] == "stop"
        return message


def _begin_with(rank: Any) -> None:
    rank_main: Callable[..., None] = rank.rank_main

    def begin(connection: Any, job: Any) -> None:
        me.begin(job.rendezvous.rank, job.attempt)
        me.reach("begin")
        rank_main(_Line(connection), job)

    rank.rank_main = begin


def _count_solves(layer_steps: Any) -> None:
    solve = layer_steps._solve

    def counted(engine: Any, layer: Any, own: Any, *args: Any, **kwargs: Any) -> Any:
        if own.tasks:
            me.reach(f"solving {layer.index}")
        return solve(engine, layer, own, *args, **kwargs)

    layer_steps._solve = counted


if FOLDER_VARIABLE in os.environ:
    _wrap_files()
    _wrap_work()

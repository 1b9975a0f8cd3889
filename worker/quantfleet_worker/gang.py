"""The ranks of this machine: start them, relay, watch, and find the first cause of a failure."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

from quantfleet_api.errors import ExitCode
from quantfleet_api.progress import Progress
from quantfleet_api.quantities import shown_bytes
from quantfleet_api.report import LayerReport
from quantfleet_worker.messages import Meeting, RankJob, Ready, Rendezvous, start_rank

STOPS = frozenset({ExitCode.INTERRUPTED, ExitCode.TERMINATED})
LEAVE_SECONDS = 15.0
"""How long ranks may take to leave once one is lost; then they are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangResult:
    """Exit code of the whole, and the one line that tells why."""

    code: int
    cause: str = ""


@dataclass(slots=True)
class _Member:
    rank: int
    process: ForkServerProcess
    connection: Connection | None
    state: Progress | None = None
    code: int | None = None
    cause: str = ""
    collateral: bool = False  # left because of another rank
    order: float = field(default=float("inf"))


class Gang:
    """The ranks of one attempt that this machine, or this pod, starts: all of them by default."""

    def __init__(
        self,
        context: ForkServerContext,
        ready: Ready,
        attempt: int,
        on_progress: Callable[[Progress], None],
        meeting: Meeting | None = None,
        on_layers: Callable[[Sequence[LayerReport]], None] = lambda layers: None,
    ) -> None:
        self._ready, self._on_progress, self._on_layers = ready, on_progress, on_layers
        self._meeting = meeting or Meeting(ranks=range(ready.world_size))
        self._members = [self._start(context, rank, attempt) for rank in self._meeting.ranks]
        self._deadline: float | None = None
        self._stop_code = 0
        self._killed = False  # stopped twice

    def _start(self, context: ForkServerContext, rank: int, attempt: int) -> _Member:
        ours, theirs = context.Pipe()
        job = RankJob(
            rendezvous=Rendezvous(
                rank=rank,
                world_size=self._ready.world_size,
                host=self._meeting.host,
                port=self._meeting.port,
                processes=len(self._meeting.ranks),
                seconds=self._meeting.seconds,
            ),
            local_rank=rank - self._meeting.ranks.start,
            threads=self._ready.threads,
            output=self._ready.output,
            attempt=attempt,
            model_folder=self._ready.model_folder,
            job=self._ready.job,
        )
        process = context.Process(
            target=start_rank, args=(theirs, job), name=f"rank-{rank}", daemon=True
        )
        process.start()
        theirs.close()
        return _Member(rank, process, ours)

    def ask_to_stop(self, code: int) -> None:
        """Let every rank commit what is finished and leave with `code`; the second time, kill."""
        if self._stop_code:
            self._killed = True
            for member in self._members:
                member.process.kill()
        self._stop_code = code
        self._tell_all({"kind": "stop", "code": code})

    def run(self) -> GangResult:
        """Watch until all ranks have left."""
        while any(member.code is None for member in self._members):
            self._wait()
            if self._deadline is not None and monotonic() > self._deadline:
                for member in self._members:
                    member.process.kill()
                self._deadline = None
        return self._result()

    def _wait(self) -> None:
        watched: dict[Any, _Member] = {}
        for member in self._members:
            if member.connection is not None:
                watched[member.connection] = member
            elif member.code is None:
                watched[member.process.sentinel] = member
        for source in wait(list(watched), timeout=0.5):
            member = watched[source]
            if isinstance(source, Connection):
                self._receive(member)
            else:
                self._left(member)

    def _receive(self, member: _Member) -> None:
        assert member.connection is not None
        try:
            message = member.connection.recv()
        except (EOFError, OSError):
            member.connection.close()
            member.connection = None  # its exit is noticed by the sentinel
            return
        match message["kind"]:
            case "progress":
                member.state = Progress.model_validate(message["progress"])
                self._on_progress(member.state)
            case "layers":
                self._on_layers([LayerReport.model_validate(x) for x in message["layers"]])
            case "port":
                self._tell_all({"kind": "port", "port": message["port"]}, but=member)
            case "end":
                member.cause = message["cause"]
                member.collateral = message["lost"] is not None
                self._suspect(message["lost"], message["cause"])

    def _suspect(self, lost: int | None, cause: str) -> None:
        """A rank was missed by its peers, though its process may be there (frozen, cut off)."""
        if lost is None or lost not in self._meeting.ranks:
            return
        member = self._members[lost - self._meeting.ranks.start]
        if member.code is not None:
            return
        if not member.cause:
            member.cause = cause.partition(": ")[2] or cause
            member.order = monotonic()
            member.process.kill()

    def _left(self, member: _Member) -> None:
        member.process.join()
        member.code = member.process.exitcode
        assert member.code is not None
        member.order = min(member.order, monotonic())
        if member.code != 0 and not (self._stop_code and member.code in STOPS):
            why = member.cause or _death(member.code)
            self._tell_all({"kind": "lost", "rank": member.rank, "why": why}, but=member)
            if self._deadline is None:
                self._deadline = monotonic() + LEAVE_SECONDS

    def _tell_all(self, message: dict[str, Any], but: _Member | None = None) -> None:
        for member in self._members:
            if member is not but and member.connection is not None:
                try:
                    member.connection.send(message)
                except OSError:
                    continue  # it is leaving; its sentinel tells

    def _result(self) -> GangResult:
        failed = [member for member in self._members if member.code != 0]
        if not failed:
            return GangResult(code=0)
        if self._killed:
            return GangResult(code=self._stop_code, cause="killed on request")
        if self._stop_code and all(member.code in STOPS for member in failed):
            return GangResult(code=self._stop_code, cause="stopped on request")
        root = min(failed, key=_blame)
        code = root.code or 0
        place = "" if root.state is None else f", {_place(root.state)}"
        why = root.cause or _death(code)
        if code == -signal.SIGKILL and not root.cause:
            why += f"; the plan needs {shown_bytes(self._ready.memory_bytes)} for the ranks here"
        # a rank that was killed, or whose fork server was, is lost, not wrong
        return GangResult(
            code=code if code in list(ExitCode) else int(ExitCode.TRY_AGAIN),
            cause=f"rank {root.rank}{place}: {why}",
        )


def _blame(member: _Member) -> tuple[int, float]:
    """The first cause: mistakes of the user, then other causes, then those who just followed."""
    if member.code in (ExitCode.INVALID_INPUT, ExitCode.GATE_NOT_MET):
        return 0, member.order
    if member.collateral:
        return 3, member.order
    if member.code == ExitCode.TRY_AGAIN:
        return 2, member.order
    return 1, member.order


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed (SIGKILL; by hand, or by the system when memory ran out)"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _place(state: Progress) -> str:
    layer = f" layer {state.layer} of {state.num_layers}" if state.num_layers else ""
    name = f" ({state.message})" if state.message else ""
    return f"{state.stage.lower()}{layer}{name}"


class StopSignals:
    """Routes SIGINT and SIGTERM to `ask_to_stop` for the block's life, in the main thread only."""

    def __init__(self, ask_to_stop: Callable[[int], None]) -> None:
        self._ask = ask_to_stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        codes = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}

        def handle(number: int, frame: FrameType | None) -> None:
            self._ask(int(codes[signal.Signals(number)]))

        for number in codes:
            try:
                self._before[number] = signal.signal(number, handle)
            except ValueError:
                return  # not the main thread: whoever embeds us handles signals

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

"""One job on this machine: plan, lock, start the ranks, find out what became of them.

Called by `quantfleet run` (and later by a worker pod's entry). The ranks are forked from a server
process that has imported torch once. What goes wrong is told as one line: the first cause, not the
noise that it makes in the other ranks.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from quantfleet_api.errors import (
    ExitCode,
    GateNotMet,
    Interrupted,
    InvalidInput,
    OutputUnwritable,
    QuantFleetError,
)
from quantfleet_api.progress import Progress
from quantfleet_api.quantities import shown_bytes
from quantfleet_api.report import LayerReport
from quantfleet_api.spec import QuantizationJob
from quantfleet_worker import published
from quantfleet_worker.gang import Gang, GangResult, StopSignals
from quantfleet_worker.handover import PLAN, write_handover
from quantfleet_worker.journal import check_same_plan, read_journal
from quantfleet_worker.messages import Meeting, Ready, start_planner
from quantfleet_worker.models.registry import FAMILIES
from quantfleet_worker.work_folder import (
    WorkFolder,
    begin_attempt,
    latest_attempt,
    locked,
    remove_work,
    work_path,
)

PRELOADED = [
    "quantfleet_worker.rank",
    "quantfleet_worker.planner",
    "transformers.models.auto.tokenization_auto",
    *(family.layer_class.partition(":")[0] for family in FAMILIES),
]
"""What the fork server imports once: else each process of each run would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job: `cause` is the one line for people, `hint` what to do about it."""

    exit_code: ExitCode
    cause: str = ""
    output: Path | None = None
    report: dict[str, Any] | None = None
    hint: str = ""
    memory_bytes: int | None = None  # that the ranks started here need, once it is planned


def run_job(
    job: QuantizationJob,
    *,
    volumes: Mapping[str, Path],
    workers: int | None = None,
    discard_journal: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_log: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Carry a job out, or go on with it. Errors are an Outcome too; only bugs raise.

    1. Plan in a process of its own; nothing is written yet.
    2. A complete output of the same plan is success at once.
    3. Lock the work folder; its journal must be of the same plan.
    4. Start the ranks and watch them. SIGINT and SIGTERM let them commit what is finished.
    """
    context = fork_server()
    try:
        with StopSignals(stop_before_work):
            on_progress(Progress(rank=0, world_size=1, stage="Planning"))
            ready = plan_job(context, job, volumes, workers)  # 1
            for line in (*ready.warnings, *ready.notes):
                on_log(f"warning: {line}")
            done = finished_before(ready, job)  # 2
            if done is not None:
                return done
            refuse_warnings(ready, job)
            with locked(ready.output):  # 3
                check_place(ready, job)
                is_first = latest_attempt(ready.output) is None
                folder = start_attempt(ready, discard_journal, on_log)
                result = run_gang(context, ready, folder.attempt, on_progress)  # 4
                if is_over(result, is_first=is_first):
                    remove_work(ready.output)
        return outcome_of(ready, result)
    except QuantFleetError as error:
        return Outcome(exit_code=error.exit_code, cause=str(error))


def refuse_warnings(ready: Ready, job: QuantizationJob) -> None:
    """Under `warnings: Fail`, what planning warns of costs no work."""
    if job.spec.recipe.warnings == "Fail" and ready.warnings:
        raise GateNotMet(f"spec.recipe.warnings is Fail and there is one: {ready.warnings[0]}")


def fork_server() -> ForkServerContext:
    """The context whose server process has imported what ranks need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def plan_job(
    context: ForkServerContext,
    job: QuantizationJob,
    volumes: Mapping[str, Path],
    workers: int | None,
    processes: int | None = None,
) -> Ready:
    """Plan for so many ranks (None: as many as fit), of which `processes` run here (None: all)."""
    ours, theirs = context.Pipe(duplex=False)
    text = job.model_dump_json(by_alias=True)
    with single_threaded_environment(), stops_are_ours():
        process = context.Process(
            target=start_planner,
            args=(theirs, text, dict(volumes), workers, processes),
            daemon=True,
        )
        process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the planning process ended with code {process.exitcode}") from None
    except BaseException:
        process.kill()
        raise
    process.join()
    if isinstance(answer, QuantFleetError):
        raise answer
    assert isinstance(answer, Ready)
    return answer


@contextmanager
def single_threaded_environment() -> Iterator[None]:
    """For the start of the fork server: a library that starts threads could not be forked."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def stops_are_ours() -> Iterator[None]:
    """For the start of the fork server: a whole group may be told, but only this process decides.

    The server and all that it forks inherit that SIGINT and SIGTERM are blocked; here they wait
    for the end of the block.
    """
    resource_tracker.ensure_running()  # which would be started here, and unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_before_work(code: int) -> None:
    """Raised out of a signal handler: no rank is at work, so there is nothing to commit."""
    stop = Interrupted("stopped on request")
    stop.exit_code = ExitCode(code)
    raise stop


def finished_before(ready: Ready, job: QuantizationJob) -> Outcome | None:
    """The output is there and is of this plan: nothing to do."""
    if not (ready.output / published.MANIFEST_NAME).is_file():
        return None
    if published.read_manifest(ready.output).plan != ready.digest:
        return None
    problems = published.check(ready.output)
    if problems:
        raise InvalidInput(
            "spec.output", str(ready.output), f"is the output of this plan, but {problems[0]}"
        )
    _remove_rest(ready.output)
    return Outcome(
        exit_code=ExitCode.DONE,
        output=ready.output,
        report=_read_report(ready.output),
        hint="the output of this very plan was there already; nothing was done",
    )


def check_place(ready: Ready, job: QuantizationJob) -> None:
    """What may have changed since planning, now that the lock is held; and whose journal it is."""
    if ready.output.exists() and job.spec.output.overwrite_policy == "Fail":
        raise InvalidInput(
            "spec.output", str(ready.output), "must not exist (or set overwritePolicy: Replace)"
        )


def is_over(result: GangResult, *, is_first: bool) -> bool:
    """Whether nobody will go on from the work folder.

    What cannot be used (a weight that is not finite) leaves nothing behind, but work that was
    there before stays: it was good until somebody changed the input.
    """
    if result.code == ExitCode.INVALID_INPUT:
        return is_first
    return result.code in (ExitCode.DONE, ExitCode.GATE_NOT_MET)


def _remove_rest(output: Path) -> None:
    """A run that was killed after it had published left its work folder."""
    if work_path(output).is_dir():
        with suppress(InvalidInput, OutputUnwritable), locked(output):  # else it is at work still
            remove_work(output)


def start_attempt(ready: Ready, discard_journal: bool, on_log: Callable[[str], None]) -> WorkFolder:
    """Take the work over, with its journal if that is of the same plan. The lock is held."""
    before = latest_attempt(ready.output)
    journal = None if before is None or discard_journal else read_journal(before)
    if before is not None and journal is not None:
        plan = before.path / PLAN
        plan_before = plan.read_text() if plan.is_file() else "{}"
        check_same_plan(journal, digest=ready.digest, plan=ready.plan, journal_plan=plan_before)
        if journal.layers and not before.publishing.is_dir():
            on_log("starting over: the layers that were committed have been moved away")
            discard_journal = True  # killed just after they became `<output>.rejected`
        else:
            on_log(f"continuing: {len(journal.layers)} of {ready.num_layers} layers are committed")
    folder = begin_attempt(ready.output, discard=discard_journal)
    write_handover(folder, ready.plan, ready.tokens)
    return folder


def run_gang(
    context: ForkServerContext,
    ready: Ready,
    attempt: int,
    on_progress: Callable[[Progress], None],
    meeting: Meeting | None = None,
    on_layers: Callable[[Sequence[LayerReport]], None] = lambda layers: None,
) -> GangResult:
    """Start the ranks that belong here and watch them until all have left."""
    gang = Gang(context, ready, attempt, on_progress, meeting, on_layers)
    with StopSignals(gang.ask_to_stop):
        return gang.run()


def outcome_of(ready: Ready, result: GangResult) -> Outcome:
    """What the end of the gang means to whoever started it."""
    if result.code == ExitCode.DONE:
        report = _read_report(ready.output)
        return Outcome(exit_code=ExitCode.DONE, output=ready.output, report=report)
    work = work_path(ready.output)
    folder = latest_attempt(ready.output)
    journal = None if folder is None else read_journal(folder)
    hint = f"details are in {work}/rank-*.log" if work.is_dir() else ""
    if journal is not None and result.code not in (ExitCode.INVALID_INPUT, ExitCode.GATE_NOT_MET):
        hint = (
            f"{len(journal.layers)} of {ready.num_layers} layers are committed; "
            f"run the same command again to go on ({hint})"
        )
    cause = result.cause
    if result.code == ExitCode.OUTPUT_UNWRITABLE:
        cause += f"; the run needs {shown_bytes(ready.disk_bytes)} of disk there"
    return Outcome(exit_code=ExitCode(result.code), cause=cause, hint=hint)


def _read_report(output: Path) -> dict[str, Any] | None:
    path = output.with_name(output.name + ".report.json")
    try:
        report: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return report

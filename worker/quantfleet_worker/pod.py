"""A worker pod of an Indexed Job: its share of the gang, its exit code, its last words.

`python -m quantfleet_worker` in the container. The environment is the contract with the operator
(`docs/operator.md`); rank = completion index of the pod x processes a pod + local rank. Every pod
plans, so that all see the same files or none begins; pod 0 takes over the work folder and leaves
the attempt token, for which the others wait.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

from quantfleet_api.claims import claims_of
from quantfleet_api.errors import ExitCode, InvalidInput, QuantFleetError
from quantfleet_api.loading import parse_job
from quantfleet_api.report import ReportSummary
from quantfleet_api.spec import QuantizationJob
from quantfleet_api.termination import MOST_CAUSE, Termination, termination_text
from quantfleet_worker import launch, published
from quantfleet_worker.attempt_token import (
    Token,
    briefly_locked,
    leave_token,
    refuse_survivors,
    wait_for_attempt,
)
from quantfleet_worker.gang import GangResult, StopSignals
from quantfleet_worker.messages import Meeting, Ready
from quantfleet_worker.report_sender import target_of
from quantfleet_worker.reporter import LAST_SECONDS, Reporter
from quantfleet_worker.work_folder import remove_work

TERMINATION_LOG = "/dev/termination-log"
"""Where a kubelet looks for a container's last words; QUANTFLEET_TERMINATION_LOG names another."""
BEGIN_SECONDS = 3600
"""How long pods wait for each other where QUANTFLEET_BEGIN_SECONDS does not say it: images are
pulled and pods scheduled at different speeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a pod stands in its gang."""

    spec: Path
    volumes: Path
    job_uid: str
    attempt: int
    index: int
    pods: int
    processes: int
    host: str
    port: int
    begin_seconds: int

    @property
    def meeting(self) -> Meeting:
        """The ranks of this pod, and where all meet."""
        first = self.index * self.processes
        return Meeting(
            ranks=range(first, first + self.processes),
            host=self.host,
            port=self.port,
            seconds=self.begin_seconds,
        )


def read_place(environment: Mapping[str, str]) -> Place:
    """The place that the operator and the Job controller gave; InvalidInput names what is wrong."""
    place = Place(
        spec=Path(_text(environment, "QUANTFLEET_SPEC")),
        volumes=Path(_text(environment, "QUANTFLEET_VOLUMES")),
        job_uid=_text(environment, "QUANTFLEET_JOB_UID"),
        attempt=_number(environment, "QUANTFLEET_ATTEMPT", low=1),
        index=_number(environment, "JOB_COMPLETION_INDEX", low=0),
        pods=_number(environment, "NNODES", low=1),
        processes=_number(environment, "NPROC_PER_NODE", low=1),
        host=_text(environment, "MASTER_ADDR"),
        port=_number(environment, "MASTER_PORT", low=1),
        begin_seconds=_number(
            {"QUANTFLEET_BEGIN_SECONDS": str(BEGIN_SECONDS)} | dict(environment),
            "QUANTFLEET_BEGIN_SECONDS",
            low=1,
        ),
    )
    if place.index >= place.pods:
        rule = f"must be below NNODES ({place.pods})"
        raise InvalidInput("JOB_COMPLETION_INDEX", place.index, rule)
    return place


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise InvalidInput(name, value, "must be set: a worker pod is started by the operator")
    return value


def _number(environment: Mapping[str, str], name: str, *, low: int) -> int:
    text = _text(environment, name)
    if not text.isdecimal() or int(text) < low:
        raise InvalidInput(name, text, f"must be an integer from {low} on")
    return int(text)


def main() -> int:
    """The container's command: run this pod's ranks; leave last words; return the exit code."""
    speaks, reporter = False, None
    try:
        place = read_place(os.environ)
        speaks = place.index == 0
        reporter = _reporter(place)
        outcome = run_pod(place, say=_say, on_ready=_leave_need, reporter=reporter)
    except QuantFleetError as error:
        outcome = launch.Outcome(exit_code=error.exit_code, cause=str(error))
    except BaseException:
        _leave("")  # the log's tail tells more than what was left at the start
        raise
    if outcome.cause:
        _say(f"error: {outcome.cause}")
    if outcome.hint:
        _say(f"hint: {outcome.hint}")
    words = last_words(outcome, published_here=speaks)
    _leave(termination_text(words))
    if reporter is not None:
        reporter.finish(_summary(words) if speaks else None, seconds=LAST_SECONDS if speaks else 0)
    return int(outcome.exit_code)


def _reporter(place: Place) -> Reporter | None:
    target = target_of(os.environ)
    if target is None:
        return None
    return Reporter(target, attempt=place.attempt, pod=place.index, say=_say)


def _summary(words: Termination) -> ReportSummary:
    return ReportSummary(
        digest=words.manifest_digest,
        size_bytes=words.size_bytes,
        file_count=words.file_count,
        warnings=words.warnings,
        cause=words.cause,
    )


def run_pod(
    place: Place,
    *,
    say: Callable[[str], None],
    on_ready: Callable[[Ready], None] = lambda ready: None,
    reporter: Reporter | None = None,
) -> launch.Outcome:
    """This pod's whole story; errors are an Outcome too, only bugs raise.

    1. Plan, as every pod does.
    2. A complete output of the same plan is success at once (rule C4).
    3. Pod 0 takes the work over; the others wait for its token.
    4. Start this pod's ranks and watch them; on SIGTERM they commit what is finished (rule C5).
    """
    context = launch.fork_server()
    try:
        job, folders = _read_job(place)
        with StopSignals(launch.stop_before_work):
            ranks = place.pods * place.processes
            ready = launch.plan_job(context, job, folders, ranks, place.processes)  # 1
            on_ready(ready)
            for line in (*ready.warnings, *ready.notes):
                say(f"warning: {line}")
            done = launch.finished_before(ready, job)  # 2
            if done is not None:
                return done
            launch.refuse_warnings(ready, job)
            attempt = _attempt(place, ready, job, say)  # 3
        result = _run_ranks(place, context, ready, attempt, reporter)  # 4
        if place.index == 0 and result.code in (ExitCode.DONE, ExitCode.GATE_NOT_MET):
            remove_work(ready.output)
        outcome = _own_outcome(launch.outcome_of(ready, result), result)
        return replace(outcome, memory_bytes=ready.memory_bytes)
    except QuantFleetError as error:
        return launch.Outcome(exit_code=error.exit_code, cause=str(error))


def _run_ranks(
    place: Place,
    context: ForkServerContext,
    ready: Ready,
    attempt: int,
    reporter: Reporter | None,
) -> GangResult:
    if reporter is None:
        return launch.run_gang(context, ready, attempt, lambda progress: None, place.meeting)
    told = reporter.progress, place.meeting, reporter.layers
    return launch.run_gang(context, ready, attempt, *told)


def _read_job(place: Place) -> tuple[QuantizationJob, dict[str, Path]]:
    try:
        job = parse_job(json.loads(place.spec.read_bytes()))
    except (OSError, ValueError) as error:
        raise InvalidInput("QUANTFLEET_SPEC", str(place.spec), f"must be JSON ({error})") from None
    claims = claims_of(job.spec.model_dump(mode="json", by_alias=True))
    return job, {claim: place.volumes / claim for claim in claims}


def _attempt(place: Place, ready: Ready, job: QuantizationJob, say: Callable[[str], None]) -> int:
    """The number of this attempt in the work folder."""
    token = Token(job_uid=place.job_uid, attempt=place.attempt, plan=ready.digest)
    if place.index > 0:
        folder = wait_for_attempt(ready.output, token, seconds=place.begin_seconds)
        return folder.attempt
    with briefly_locked(ready.output):
        refuse_survivors(ready.output, token)
        launch.check_place(ready, job)
        folder = launch.start_attempt(ready, False, say)
        leave_token(folder, token)
        return folder.attempt


def _own_outcome(outcome: launch.Outcome, result: GangResult) -> launch.Outcome:
    """A rank that stopped because another pod was told to stop tries again, it was not asked."""
    if result.code != ExitCode.INTERRUPTED:
        return outcome
    cause = "a peer was stopped"
    return launch.Outcome(exit_code=ExitCode.TRY_AGAIN, cause=cause, hint=outcome.hint)


def last_words(outcome: launch.Outcome, *, published_here: bool) -> Termination:
    """What the operator learns: the digest of what was published, or the cause (rule C8).

    Only rank 0's pod speaks of the output: the others leave when they are done, before it is there.
    """
    if outcome.exit_code != ExitCode.DONE or outcome.output is None or not published_here:
        return Termination(memory_bytes=outcome.memory_bytes, cause=outcome.cause[:MOST_CAUSE])
    raw = (outcome.output / published.MANIFEST_NAME).read_bytes()
    files = published.read_manifest(outcome.output).files
    report = outcome.report or {}
    return Termination(
        manifest_digest=f"sha256:{hashlib.sha256(raw).hexdigest()}",
        size_bytes=len(raw) + sum(entry.size for entry in files.values()),
        file_count=len(files) + 1,
        warnings=len(report.get("warnings", ())),
    )


def _leave_need(ready: Ready) -> None:
    """What this pod needs: whoever is killed when memory runs out has no time for words."""
    _leave(termination_text(Termination(memory_bytes=ready.memory_bytes)))


def _leave(text: str) -> None:
    path = Path(os.environ.get("QUANTFLEET_TERMINATION_LOG", TERMINATION_LOG))
    try:
        path.write_text(text)
    except OSError:
        _say(text)  # not in a container: the log's tail says it


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()

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
from dataclasses import dataclass
from pathlib import Path

from quantfleet_api.claims import claims_of
from quantfleet_api.errors import ExitCode, InvalidInput, QuantFleetError
from quantfleet_api.loading import parse_job
from quantfleet_api.progress import Progress
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
from quantfleet_worker.work_folder import remove_work

TERMINATION_LOG = "/dev/termination-log"
"""Where a kubelet looks for a container's last words; QUANTFLEET_TERMINATION_LOG names another."""
BEGIN_SECONDS = 900.0
"""How long a pod waits for pod 0: images are pulled and pods scheduled at different speeds."""


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

    @property
    def meeting(self) -> Meeting:
        """The ranks of this pod, and where all meet."""
        first = self.index * self.processes
        return Meeting(ranks=range(first, first + self.processes), host=self.host, port=self.port)


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
    speaks = False
    try:
        place = read_place(os.environ)
        speaks = place.index == 0
        outcome = run_pod(place, say=_say)
    except QuantFleetError as error:
        outcome = launch.Outcome(exit_code=error.exit_code, cause=str(error))
    if outcome.cause:
        _say(f"error: {outcome.cause}")
    if outcome.hint:
        _say(f"hint: {outcome.hint}")
    _leave_words(last_words(outcome, published_here=speaks))
    return int(outcome.exit_code)


def run_pod(
    place: Place,
    *,
    say: Callable[[str], None],
    on_progress: Callable[[Progress], None] = lambda progress: None,
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
            ready = launch.plan_job(context, job, folders, place.pods * place.processes)  # 1
            for line in (*ready.warnings, *ready.notes):
                say(f"warning: {line}")
            done = launch.finished_before(ready, job)  # 2
            if done is not None:
                return done
            launch.refuse_warnings(ready, job)
            attempt = _attempt(place, ready, job, say)  # 3
        result = launch.run_gang(context, ready, attempt, on_progress, place.meeting)  # 4
        if place.index == 0 and result.code in (ExitCode.DONE, ExitCode.GATE_NOT_MET):
            remove_work(ready.output)
        return _own_outcome(launch.outcome_of(ready, result), result)
    except QuantFleetError as error:
        return launch.Outcome(exit_code=error.exit_code, cause=str(error))


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
        folder = wait_for_attempt(ready.output, token, seconds=BEGIN_SECONDS)
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
        return Termination(cause=outcome.cause[:MOST_CAUSE])
    raw = (outcome.output / published.MANIFEST_NAME).read_bytes()
    files = published.read_manifest(outcome.output).files
    report = outcome.report or {}
    return Termination(
        manifest_digest=f"sha256:{hashlib.sha256(raw).hexdigest()}",
        size_bytes=len(raw) + sum(entry.size for entry in files.values()),
        file_count=len(files) + 1,
        warnings=len(report.get("warnings", ())),
    )


def _leave_words(words: Termination) -> None:
    path = Path(os.environ.get("QUANTFLEET_TERMINATION_LOG", TERMINATION_LOG))
    try:
        path.write_text(termination_text(words))
    except OSError:
        _say(termination_text(words))  # not in a container: the log's tail says it


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()

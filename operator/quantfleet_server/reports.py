"""The route that workers report through."""

import asyncio
from time import perf_counter

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from quantfleet_api.report import MOST_BODY_BYTES, ProgressReport, ReportAnswer
from quantfleet_operator.answers import ApiError
from quantfleet_server.authentication import check_account
from quantfleet_server.documents import REPORT_BODY, responses
from quantfleet_server.errors import Problem
from quantfleet_server.jobs import Job
from quantfleet_server.metrics import REPORT_SECONDS, REPORTS
from quantfleet_server.parts import Name, Namespace, Parts, address_of, parts_of
from quantfleet_server.reads import ONE
from quantfleet_server.tokens import WorkerAudience
from quantfleet_server.writer import Ended

BODY_SECONDS = 10.0
"""For the whole body to come in."""
WRITE_SECONDS = 4.0
"""How long the last report waits for its way into the status; its sender waits for 5 s."""
LEAST_INTERVAL_SECONDS = 1.0
MOST_FAULTS = 5
CODES = (400, 401, 403, 404, 408, 409, 413, 422, 429, 503)
router = APIRouter(tags=["report"])


@router.post(
    f"{ONE}/progress",
    response_model=ReportAnswer,
    responses=responses(ReportAnswer, *CODES),
    openapi_extra=REPORT_BODY,
)
async def report_progress(request: Request, namespace: Namespace, name: Name) -> Response:
    """Takes a report of a worker pod. The token must be the pod's own, for its attempt."""
    started = perf_counter()
    try:
        answer = await _taken(request, parts_of(request), namespace, name)
    except Problem as problem:
        REPORTS.labels(outcome=str(problem.code)).inc()
        raise
    REPORTS.labels(outcome="stale" if answer.stale else "taken").inc()
    REPORT_SECONDS.observe(perf_counter() - started)
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json")


async def _taken(request: Request, parts: Parts, namespace: str, name: str) -> ReportAnswer:
    if reason := parts.not_ready():
        raise Problem(503, f"not ready: {reason}", retry_after=1)
    header = request.headers.get("authorization")
    audience, user = await parts.door.worker(header, address_of(request))
    job = parts.board.jobs.find(namespace, name)
    if job is None:
        raise Problem(404, f'quantizationjobs "{name}" not found in namespace "{namespace}"')
    if job.uid != audience.uid:
        raise Problem(403, "the token is for another job")
    check_account(user, job)
    report = _parsed(await body_of(request))
    _check_attempt(job, report, audience)
    taken = parts.board.take(job, report, parts.now())
    if report.final and report.pod == 0 and not taken.stale:
        await _written(parts, job)
    return ReportAnswer(
        stale=taken.stale,
        known_layers=parts.board.entry(job).live.known_layers(),
        min_interval_seconds=LEAST_INTERVAL_SECONDS,
    )


def _check_attempt(job: Job, report: ProgressReport, audience: WorkerAudience) -> None:
    if report.attempt != audience.attempt:
        raise Problem(403, f"the token is for attempt {audience.attempt}")
    if job.terminal:
        raise Problem(409, "the job has ended: its status is final")
    present = job.status.attempt
    if report.attempt < present:
        raise Problem(409, f"attempt {report.attempt} is over: the present one is {present}")
    if report.attempt > present:  # its pods exist, so the watch is behind
        text = f"attempt {report.attempt} is not known yet"
        raise Problem(503, text, retry_after=1)


async def _written(parts: Parts, job: Job) -> None:
    """Writes the end at once (rule C11); what cannot be written now is written later."""
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await parts.writer.write_now(job)
    except Ended:
        raise Problem(409, "the job has ended: its status is final") from None
    except (ApiError, TimeoutError):
        return


def _parsed(body: bytes) -> ProgressReport:
    try:
        return ProgressReport.model_validate_json(body, by_alias=True, by_name=False)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        told = "; ".join(_fault(fault["loc"], fault["msg"]) for fault in faults[:MOST_FAULTS])
        more = len(faults) - MOST_FAULTS
        raise Problem(422, told + (f"; and {more} more" if more > 0 else "")) from None


def _fault(where: tuple[int | str, ...], what: str) -> str:
    place = ".".join(str(part)[:64] for part in where)
    return f"{place}: {what}" if place else what


async def body_of(request: Request) -> bytes:
    """The body, unless it is too long: then nothing of it is parsed."""
    told = request.headers.get("content-length", "")
    too_long = Problem(413, f"a report has at most {MOST_BODY_BYTES} bytes")
    if told.isdigit() and int(told[:20]) > MOST_BODY_BYTES:
        raise too_long
    parts, length = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                length += len(part)
                if length > MOST_BODY_BYTES:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise Problem(408, "the body did not come in") from None
    return b"".join(parts)

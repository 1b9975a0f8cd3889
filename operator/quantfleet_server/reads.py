"""The routes that people and programs read jobs through; each needs a token for this server."""

from typing import Annotated

from fastapi import APIRouter, Depends

from quantfleet_api.names import PLURAL, VERSION
from quantfleet_server.cluster import User
from quantfleet_server.documents import READ_CODES, responses
from quantfleet_server.errors import Problem
from quantfleet_server.jobs import Job
from quantfleet_server.parts import Namespace, Parts, Readable, Reader, parts_of
from quantfleet_server.views import (
    History,
    JobList,
    JobView,
    Layers,
    OutputView,
    ProgressView,
    Ranks,
    event_view,
    job_view,
    layers_view,
    ranks_view,
)

MOST_ASKED = 100
"""Jobs of a namespace whose rights are asked for one by one, where `list` is not allowed."""
ALL = f"/apis/{VERSION}/{PLURAL}"
IN_NAMESPACE = f"/apis/{VERSION}/namespaces/{{namespace}}/{PLURAL}"
ONE = f"{IN_NAMESPACE}/{{name}}"
LIST_CODES = (401, 403, 422, 429, 503)
router = APIRouter(tags=["read"])
PartsOf = Annotated[Parts, Depends(parts_of)]


@router.get(ALL, response_model_exclude_none=True, responses=responses(JobList, 401, 429, 503))
async def list_all_jobs(parts: PartsOf, user: Reader) -> JobList:
    """The jobs of all namespaces in which the caller may list them."""
    if await parts.door.may(user, "list", None):
        return _list(parts, tuple(parts.board.jobs))
    namespaces = sorted({job.namespace for job in parts.board.jobs})
    visible = {name for name in namespaces if await parts.door.may(user, "list", name)}
    return _list(parts, tuple(job for job in parts.board.jobs if job.namespace in visible))


@router.get(
    IN_NAMESPACE, response_model_exclude_none=True, responses=responses(JobList, *LIST_CODES)
)
async def list_jobs(namespace: Namespace, parts: PartsOf, user: Reader) -> JobList:
    """The jobs of a namespace: all, or where the caller may not list them, those it may get."""
    jobs = tuple(job for job in parts.board.jobs if job.namespace == namespace)
    if await parts.door.may(user, "list", namespace):
        return _list(parts, jobs)
    jobs = tuple([job for job in jobs[:MOST_ASKED] if await _may_get(parts, user, job)])
    if not jobs:
        raise Problem(403, f'you may not list quantizationjobs in namespace "{namespace}"')
    return _list(parts, jobs)


async def _may_get(parts: Parts, user: User, job: Job) -> bool:
    return await parts.door.may(user, "get", job.namespace, job.name)


def _list(parts: Parts, jobs: tuple[Job, ...]) -> JobList:
    return JobList(items=tuple(job_view(parts.board, job) for job in jobs))


@router.get(ONE, response_model_exclude_none=True, responses=responses(JobView, *READ_CODES))
async def read_job(parts: PartsOf, job: Readable) -> JobView:
    """A job: its status, with the progress that the workers reported last."""
    return job_view(parts.board, job)


@router.get(
    f"{ONE}/progress",
    response_model_exclude_none=True,
    responses=responses(ProgressView, *READ_CODES),
)
async def read_progress(parts: PartsOf, job: Readable) -> ProgressView:
    """The progress that the workers reported last."""
    return ProgressView(attempt=job.status.attempt, progress=parts.board.draw(job))


@router.get(
    f"{ONE}/ranks", response_model_exclude_none=True, responses=responses(Ranks, *READ_CODES)
)
async def read_ranks(parts: PartsOf, job: Readable) -> Ranks:
    """Where each rank of the present attempt is."""
    return ranks_view(parts.board.entry(job).live)


@router.get(
    f"{ONE}/layers", response_model_exclude_none=True, responses=responses(Layers, *READ_CODES)
)
async def read_layers(parts: PartsOf, job: Readable) -> Layers:
    """The layers that are committed, with time and error of each."""
    return layers_view(parts.board.entry(job).live)


@router.get(
    f"{ONE}/output", response_model_exclude_none=True, responses=responses(OutputView, *READ_CODES)
)
async def read_output(parts: PartsOf, job: Readable) -> OutputView:
    """What was published, and what the workers said at their end."""
    return OutputView(output=job.status.output, summary=parts.board.entry(job).live.summary)


@router.get(
    f"{ONE}/history", response_model_exclude_none=True, responses=responses(History, *READ_CODES)
)
async def read_history(parts: PartsOf, job: Readable) -> History:
    """The events of Kubernetes about the job."""
    found = await parts.cluster.events(job.namespace, job.uid)
    items = sorted((event_view(raw) for raw in found), key=lambda event: event.time)
    return History(items=tuple(items))

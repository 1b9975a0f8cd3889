"""The route that watchers follow a job through: server-sent events, resumed by Last-Event-ID."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Header, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from quantfleet_server.channel import Channel
from quantfleet_server.documents import READ_CODES, Responses, responses
from quantfleet_server.errors import Problem
from quantfleet_server.jobs import Job
from quantfleet_server.metrics import WATCHERS
from quantfleet_server.parts import Parts, Readable, Reader, address_of, parts_of
from quantfleet_server.reads import ONE
from quantfleet_server.views import job_view

MOST_WATCHERS = 1000
SEND_SECONDS = 20.0
"""A watcher that takes nothing for this long is let go."""
RETRY_MILLISECONDS = 2000
"""How long a watcher should wait before it comes back."""
CHECK_SECONDS = 60.0
"""How often a watcher's token and rights are looked at again."""
router = APIRouter(tags=["read"])
DESCRIPTION: Responses = {
    200: {
        "description": "Events: `snapshot` (the job), `status`, `progress`, `layers`, `deleted`,"
        " and `end` after the last one. Comments in between keep the connection alive.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": 'id: 1a2b3c4d-5\nevent: progress\ndata: {"percent":38}\n\n',
            }
        },
    },
    204: {"description": "The job has ended, and the caller has seen its last event."},
}


@router.get(
    f"{ONE}/events",
    response_class=EventSourceResponse,
    responses={**responses(None, *READ_CODES), **DESCRIPTION},
)
async def follow_job(
    request: Request,
    job: Readable,
    user: Reader,
    last_event_id: Annotated[str | None, Header(max_length=128)] = None,
) -> Response:
    """What happens to a job, as it happens.

    It begins with the whole job, or, where the caller names the last event that it had and those
    since are still kept, with these.
    """
    parts = parts_of(request)
    channel = parts.board.entry(job).channel
    number = channel.number_of(last_event_id) if last_event_id else None
    if number is not None and channel.after(number) is None:
        number = None
    if channel.ended and number == channel.last:
        return Response(status_code=204)
    if parts.board.watchers >= MOST_WATCHERS:
        raise Problem(503, "too many watchers", retry_after=10)
    return EventSourceResponse(
        _events(request, parts, job, channel, number),
        ping=parts.settings.heartbeat_seconds,
        send_timeout=SEND_SECONDS,
        headers={"Cache-Control": "no-store"},
    )


@contextmanager
def _counted(parts: Parts) -> Iterator[None]:
    """Counts a watcher for as long as it stays."""
    parts.board.watchers += 1
    WATCHERS.set(parts.board.watchers)
    try:
        yield
    finally:
        parts.board.watchers -= 1
        WATCHERS.set(parts.board.watchers)


async def _events(
    request: Request, parts: Parts, job: Job, channel: Channel, number: int | None
) -> AsyncIterator[ServerSentEvent]:
    """The events after `number` (None: the whole job first), until the job or the right ends."""
    checked = parts.door.clock()
    with _counted(parts):
        while True:
            if number is None or (events := channel.after(number)) is None:
                number = channel.last
                yield _snapshot(parts, job, channel)
                continue
            for event in events:
                number = event.number
                identifier = channel.identifier(number)
                yield ServerSentEvent(event.data, event=event.kind, id=identifier)
            if parts.board.closing:
                return
            if channel.ended and number == channel.last:
                yield ServerSentEvent("{}", event="end", id=channel.identifier(number))
                return
            if parts.door.clock() - checked > CHECK_SECONDS:
                if not await _still_may(request, parts, job):
                    return
                checked = parts.door.clock()
            await channel.news(number)


def _snapshot(parts: Parts, job: Job, channel: Channel) -> ServerSentEvent:
    """The whole job as it is now."""
    present = parts.board.jobs.find(*job.key)
    view = job_view(parts.board, present if present and present.uid == job.uid else job)
    data = view.model_dump_json(by_alias=True, exclude_none=True)
    return ServerSentEvent(
        data, event="snapshot", id=channel.identifier(channel.last), retry=RETRY_MILLISECONDS
    )


async def _still_may(request: Request, parts: Parts, job: Job) -> bool:
    """Whether the watcher's token still counts, and its right to get the job."""
    header = request.headers.get("authorization")
    try:
        user = await parts.door.reader(header, address_of(request))
        return await parts.door.may(user, "get", job.namespace, job.name)
    except Problem:
        return False

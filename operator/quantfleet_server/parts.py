"""What routes need, handed to the application when it is made; there are no globals."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Path, Request

from quantfleet_api.names import MOST_NAME
from quantfleet_server.authentication import Door
from quantfleet_server.board import Board
from quantfleet_server.cluster import Cluster, User
from quantfleet_server.errors import Problem
from quantfleet_server.jobs import Job
from quantfleet_server.settings import Settings
from quantfleet_server.writer import Writer

_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Namespace = Annotated[
    str, Path(max_length=63, pattern=_LABEL, examples=["team"], description="Namespace of the job.")
]
Name = Annotated[
    str,
    Path(
        max_length=MOST_NAME,
        pattern=_LABEL,
        examples=["smollm2-w8a8"],
        description="Name of the job.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the server."""

    settings: Settings
    cluster: Cluster
    board: Board
    door: Door
    writer: Writer
    now: Callable[[], datetime]
    not_alive: Callable[[], str]
    """Why the process should be restarted, "" while it should not."""
    not_ready: Callable[[], str]
    """Why no request can be answered yet, "" once they can."""


def parts_of(request: Request) -> Parts:
    """The parts that this application was made of."""
    parts: Parts = request.app.state.parts
    return parts


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client is not None else ""


async def reader_of(request: Request) -> User:
    """The user who reads."""
    parts = parts_of(request)
    if reason := parts.not_ready():
        raise Problem(503, f"not ready: {reason}", retry_after=1)
    return await parts.door.reader(request.headers.get("authorization"), address_of(request))


Reader = Annotated[User, Depends(reader_of)]


async def readable_job(request: Request, namespace: Namespace, name: Name, user: Reader) -> Job:
    """A job that the reader may get; whoever may not is not told whether it is there."""
    parts = parts_of(request)
    if not await parts.door.may(user, "get", namespace, name):
        raise Problem(403, f'you may not get quantizationjobs "{name}" in namespace "{namespace}"')
    job = parts.board.jobs.find(namespace, name)
    if job is None:
        raise Problem(404, f'quantizationjobs "{name}" not found in namespace "{namespace}"')
    return job


Readable = Annotated[Job, Depends(readable_job)]

"""The server's process: `python -m quantfleet_server`.

Exit codes: 0 after SIGTERM or SIGINT, 2 if a setting is wrong or there is no certificate.
"""

import asyncio
import logging
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import uvicorn
import uvloop

from quantfleet_server.application import application_of
from quantfleet_server.authentication import open_door
from quantfleet_server.board import Board
from quantfleet_server.cluster import Cluster, connect
from quantfleet_server.limits import Buckets
from quantfleet_server.parts import Parts
from quantfleet_server.settings import Settings, settings_from
from quantfleet_server.tls import Certificate, certificate_of
from quantfleet_server.watching import Watching
from quantfleet_server.writer import Writer

logger = logging.getLogger("quantfleet_server")

GRACE_SECONDS = 3
"""For requests that are under way when the process is told to stop."""


def main() -> int:
    """Runs until it is told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = settings_from()
        certificate = certificate_of(settings.certificate_file, settings.key_file)
    except (ValueError, OSError) as error:
        logger.error("%s", error)
        return 2
    uvloop.run(serve(settings, certificate))
    return 0


async def serve(settings: Settings, certificate: Certificate) -> None:
    """Watches jobs, serves, and writes; returns once it was told to stop and has written."""
    cluster = await connect()
    board = Board(epoch=secrets.token_hex(4))
    writer = Writer(
        cluster=cluster,
        board=board,
        clock=time.monotonic,
        write_seconds=settings.write_seconds,
        budget=Buckets(rate=settings.writes_per_second, burst=settings.writes_per_second),
    )
    watches = [
        Watching(cluster=cluster, board=board, namespace=namespace, clock=time.monotonic)
        for namespace in settings.namespaces or (None,)
    ]
    parts = parts_from(settings, cluster, board, writer, watches)
    server = server_of(parts, certificate)
    tasks = [asyncio.create_task(watch.run()) for watch in watches]
    tasks.append(asyncio.create_task(writer.run()))
    tasks.append(asyncio.create_task(certificate.follow(settings.certificate_seconds)))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    serving = asyncio.create_task(server.serve())
    try:
        await asyncio.wait([serving, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():  # none ever returns: a bug, which must not go unseen
                server.should_exit = True
                task.result()
    finally:
        await serving
        await writer.finish()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.close()


def parts_from(
    settings: Settings,
    cluster: Cluster,
    board: Board,
    writer: Writer,
    watches: Sequence[Watching],
) -> Parts:
    """What the application is made of."""

    def not_ready() -> str:
        return "" if all(watch.synchronized for watch in watches) else "jobs were not listed yet"

    return Parts(
        settings=settings,
        cluster=cluster,
        board=board,
        door=open_door(
            cluster,
            wall=time.time,
            clock=time.monotonic,
            token_seconds=settings.token_cache_seconds,
            reports_per_second=settings.reports_per_second,
        ),
        writer=writer,
        now=lambda: datetime.now(UTC),
        not_alive=lambda: next((why for watch in watches if (why := watch.stuck())), ""),
        not_ready=not_ready,
    )


class Server(uvicorn.Server):
    """The HTTP server; told to stop, it lets watchers go first.

    Signals are `serve`'s: uvicorn would end the process by the same signal once it has stopped,
    before the last progress is written.
    """

    board: Board

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield

    def stop(self) -> None:
        """Ends `serve` soon."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends all streams, then what uvicorn ends."""
        self.board.close()
        await super().shutdown(sockets)


def server_of(parts: Parts, certificate: Certificate) -> Server:
    """The HTTP server of an application."""

    def context(_: uvicorn.Config, __: object) -> ssl.SSLContext:
        return certificate.context

    configuration = uvicorn.Config(
        application_of(parts),
        host="0.0.0.0",
        port=parts.settings.port,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=context,
    )
    server = Server(configuration)
    server.board = parts.board
    return server


if __name__ == "__main__":
    sys.exit(main())

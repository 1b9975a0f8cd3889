"""A proxy before the real API server that breaks what a test tells it to break.

Plain HTTP in, TLS out; the client's token travels on. It runs in a thread of the test, which reads
its list of calls and hands it faults; a fault names the calls that it strikes.
"""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
STEP_SECONDS = 0.05
SESSION = web.AppKey("session", ClientSession)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that the client made; `number` counts from 1, `at` is of time.monotonic()."""

    number: int
    at: float
    method: str
    path: str
    watch: bool
    agent: str

    @property
    def writes(self) -> bool:
        return self.method not in ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What to do to the next `times` calls for which `strikes` is true.

    Kinds: `answer` (never forwarded: `status`, `retry_after`), `cut` (connection closed unanswered,
    never forwarded), `cut_after` (forwarded, carried out, and the answer lost), `stall` (accepted
    and silent for ever), `expire` (a watch gets an ERROR event 410), `call` (forwarded and
    answered). `then` is called in the proxy's thread once a call was answered or its answer lost.
    """

    kind: Literal["answer", "cut", "cut_after", "stall", "expire", "call"]
    strikes: Callable[[Call], bool]
    times: int = 1
    status: int = 500
    retry_after: int | None = None
    then: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _State:
    """Shared between the test's thread and the proxy's; guarded by the lock."""

    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    down: bool = False
    silent: set[int] = field(default_factory=set)  # numbers of calls
    transports: set[asyncio.BaseTransport] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class FaultProxy:
    """A running proxy; `url` goes into a kubeconfig as `server`."""

    def __init__(self, server: str, authority: Path) -> None:
        self._server, self._authority = server, authority
        self._state = _State()
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self.url = ""

    @property
    def calls(self) -> list[Call]:
        """All requests so far, in order."""
        with self._state.lock:
            return list(self._state.calls)

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.writes]

    def inject(self, fault: Fault) -> None:
        """Add a fault; older ones strike first."""
        with self._state.lock:
            self._state.faults.append(fault)

    def pending(self) -> list[Fault]:
        """Faults that have not struck as often as they should."""
        with self._state.lock:
            return list(self._state.faults)

    def clear(self) -> None:
        """Drop all faults that are left."""
        with self._state.lock:
            self._state.faults.clear()

    def go_down(self) -> None:
        """Close every connection, and close new ones unanswered, until `come_up`."""
        self._state.down = True
        self.cut_connections()

    def come_up(self) -> None:
        self._state.down = False

    def fall_silent(self) -> None:
        """Pass nothing more on to watches that are open now, and keep them, until `speak`."""
        self._state.silent = {call.number for call in self.calls if call.watch}

    def speak(self) -> None:
        self._state.silent = set()

    def cut_connections(self) -> None:
        """Abort all open connections once."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def _abort_all(self) -> None:
        for transport in list(self._state.transports):
            if isinstance(transport, asyncio.Transport):
                transport.abort()
        self._state.transports.clear()

    async def _live(self, started: threading.Event) -> None:
        """Serve until `stop`."""
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(client_max_size=16 << 20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        application.cleanup_ctx.append(self._session)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        started.set()
        await self._stopping.wait()
        self._abort_all()
        await runner.cleanup()

    def run(self, started: threading.Event) -> None:
        """The thread's whole life; `started` is set once `url` answers."""
        asyncio.run(self._live(started))

    def stop(self) -> None:
        """Tell the thread to end."""
        self.speak()
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def _session(self, application: web.Application) -> AsyncIterator[None]:
        trusted = ssl.create_default_context(cafile=self._authority)
        connector = TCPConnector(ssl=trusted, limit=0)
        timeout = ClientTimeout(total=None)
        async with ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            application[SESSION] = session
            yield
        await asyncio.sleep(STEP_SECONDS)  # a TLS connection closes in the loop's next rounds

    def _admit(self, request: web.Request) -> tuple[Call, Fault | None]:
        """Count the call, and use up the fault that strikes it."""
        with self._state.lock:
            call = Call(
                number=len(self._state.calls) + 1,
                at=time.monotonic(),
                method=request.method,
                path=request.path,
                watch=request.query.get("watch", "") in ("1", "true", "True"),
                agent=request.headers.get("User-Agent", ""),
            )
            self._state.calls.append(call)
            for place, fault in enumerate(self._state.faults):
                if fault.strikes(call):
                    left = replace(fault, times=fault.times - 1)
                    self._state.faults[place : place + 1] = [left] if left.times else []
                    return call, fault
        return call, None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        if transport is None or self._state.down:
            return _abort(request)
        self._state.transports.add(transport)
        call, fault = self._admit(request)
        kind = fault.kind if fault else None
        if fault is None:
            return await self._forward(request, call)
        if kind == "answer":
            return _refusal(fault.status, fault.retry_after)
        if kind == "cut":
            return _abort(request)
        if kind == "stall":
            await asyncio.Event().wait()
        if kind == "expire":
            return await _expired_watch(request)
        if kind == "cut_after":
            await self._exchange(request)
            fault.then()
            return _abort(request)
        answer = await self._forward(request, call)
        fault.then()
        return answer

    async def _exchange(self, request: web.Request) -> web.Response:
        """Forward a call that is no watch, and read its answer."""
        session: ClientSession = request.app[SESSION]
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_HEADERS}
        url = self._server + request.path_qs
        # without a body there must be no content type either, which b"" would bring
        body = await request.read() or None
        async with session.request(request.method, url, data=body, headers=headers) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_HEADERS}
            return web.Response(status=answer.status, headers=kept, body=await answer.read())

    async def _forward(self, request: web.Request, call: Call) -> web.StreamResponse:
        try:
            if call.watch:
                return await self._forward_watch(request, call)
            response = await self._exchange(request)
        except (ClientError, OSError):  # the API server itself is away
            return _abort(request)
        await response.prepare(request)
        await response.write_eof()
        return response

    async def _forward_watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        session: ClientSession = request.app[SESSION]
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_HEADERS}
        url = self._server + request.path_qs
        async with session.get(url, headers=headers) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.content_type}
            )
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                while call.number in self._state.silent:
                    await asyncio.sleep(STEP_SECONDS)
                try:
                    await response.write(chunk)
                except ConnectionError:  # the client left
                    break
            return response


def _abort(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _status(code: int) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": {410: "Expired", 409: "Conflict", 429: "TooManyRequests"}.get(
            code, "InternalError"
        ),
        "message": "injected by a test",
        "code": code,
    }


def _refusal(status: int, retry_after: int | None) -> web.Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return web.json_response(_status(status), status=status, headers=headers)


async def _expired_watch(request: web.Request) -> web.StreamResponse:
    """What a watch gets whose resource version was compacted away."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    event = {"type": "ERROR", "object": _status(410)}
    await response.write(json.dumps(event).encode() + b"\n")
    return response


@contextmanager
def fault_proxy(server: str, authority: Path) -> Iterator[FaultProxy]:
    """A proxy before `server` for the time of a test."""
    proxy, started = FaultProxy(server, authority), threading.Event()
    thread = threading.Thread(target=proxy.run, args=(started,), daemon=True)
    thread.start()
    if not started.wait(20):
        raise TimeoutError("the proxy did not start")
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join(20)

"""The application: its routes, how errors are answered, and what is done around every request."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sse_starlette.sse import SendTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quantfleet_operator.answers import ApiError
from quantfleet_server import reads, reports, streams
from quantfleet_server.documents import completed
from quantfleet_server.errors import Problem, answer_of
from quantfleet_server.metrics import REQUESTS
from quantfleet_server.parts import Parts, parts_of

logger = logging.getLogger(__name__)

_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Guard:
    """Around everything: counts answers, and makes an answer of what nobody caught."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                known = {name.lower() for name, _ in message["headers"]}
                added = [header for header in _HEADERS if header[0] not in known]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except (ClientDisconnect, SendTimeoutError):
            logger.info("client went away path=%s", scope["path"][:200])
        except Exception:  # a bug must end one request only, and tell nobody how
            logger.exception("error method=%s path=%s", scope["method"], scope["path"][:200])
            if status == 0:
                await answer_of(Problem(500, "an error of the server"))(scope, receive, counted)
        route = getattr(scope.get("route"), "path", "other")
        REQUESTS.labels(route=route, status=str(status)).inc()


def application_of(parts: Parts) -> ASGIApp:
    """The application, made of these parts."""
    app = FastAPI(
        title="QuantFleet status server",
        version="v1alpha1",
        description="Progress of QuantizationJobs: reported by workers, read by people.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.parts = parts
    for router in (reads.router, streams.router, reports.router):
        app.include_router(router)
    _add_probes(app)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(ApiError, _unreached)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    document = completed(app.openapi())
    app.openapi = lambda: document  # type: ignore[method-assign]
    return Guard(app)


def _add_probes(app: FastAPI) -> None:
    def answer(reason: str) -> Response:
        return PlainTextResponse((reason or "ok") + "\n", status_code=503 if reason else 200)

    async def healthz(request: Request) -> Response:
        return answer(parts_of(request).not_alive())

    async def readyz(request: Request) -> Response:
        parts = parts_of(request)
        return answer(parts.not_ready() or parts.not_alive())

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    for route in (healthz, readyz, metrics):
        app.add_api_route(f"/{route.__name__}", route, include_in_schema=False)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return answer_of(error)


async def _unreached(_: Request, error: Exception) -> Response:
    logger.warning("the API server did not answer: %s", error)
    return answer_of(Problem(503, "the API server did not answer", retry_after=2))


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = answer_of(Problem(error.status_code, str(error.detail)))
    answer.headers.update(error.headers or {})
    return answer


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults: Any = error.errors()
    told = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in faults[:5])
    return answer_of(Problem(422, told))

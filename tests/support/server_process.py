"""The status server as its own process over TLS, and clients of it; for tests and benchmarks."""

import json
import os
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import urllib3

import child_process
from child_process import Child, wait_for
from cluster_access import Json
from quantfleet_operator.certificates import Chain, renewed

READY_SECONDS = 60.0
NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of the server."""

    status: int
    body: Json
    headers: Mapping[str, str]


@dataclass(kw_only=True)
class Client:
    """Somebody with a token, who trusts an authority."""

    url: str
    authority: Path
    token: str = ""
    scheme: str = "Bearer"

    @cached_property
    def pool(self) -> urllib3.PoolManager:
        trusted = ssl.create_default_context(cafile=self.authority)
        return urllib3.PoolManager(maxsize=8, ssl_context=trusted)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"{self.scheme} {self.token}"} if self.token else {}

    def call(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """One request, whatever the answer."""
        answer = self.pool.request(
            method,
            self.url + path,
            body=body,
            headers={**self.headers(), "Content-Type": "application/json"},
            retries=False,
            timeout=30.0,
        )
        kind = answer.headers.get("Content-Type", "")
        parsed = json.loads(answer.data) if kind == "application/json" else {"text": answer.data}
        return Answer(status=answer.status, body=parsed, headers=answer.headers)

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, path: str, body: Json) -> Answer:
        return self.call("POST", path, json.dumps(body).encode())

    def follow(self, path: str, last: str = "") -> "Stream":
        """A stream of events; the caller closes it."""
        more = {"Last-Event-ID": last} if last else {}
        answer = self.pool.request(
            "GET",
            self.url + path,
            headers={**self.headers(), **more},
            preload_content=False,
            retries=False,
            timeout=urllib3.Timeout(connect=10, read=60),
        )
        return Stream(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A server-sent event."""

    id: str
    kind: str
    data: Json


class Stream:
    """An open stream of server-sent events."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self._events = self._read()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def next(self, *kinds: str) -> Event:
        """The next event of one of these kinds."""
        return next(event for event in self._events if event.kind in kinds)

    def _read(self) -> Iterator[Event]:
        found: dict[str, str] = {}
        rest = b""
        for chunk in self._answer.stream(None):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in (line.decode().rstrip("\r") for line in lines):
                if not line and "event" in found:
                    data = json.loads(found["data"])
                    yield Event(id=found.get("id", ""), kind=found["event"], data=data)
                if not line:
                    found = {}
                elif not line.startswith(":"):
                    key, _, value = line.partition(": ")
                    found[key] = value

    def close(self) -> None:
        self._answer.close()


@dataclass(slots=True, kw_only=True)
class ServerProcess:
    """The server that runs, or ran; `start` may follow `kill` or `stop`."""

    kubeconfig: Path
    namespaces: Sequence[str]
    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    chain: Chain = field(default_factory=lambda: renewed(Chain(), NAMES, datetime.now(UTC)))
    port: int = field(default_factory=child_process.free_port)
    child: Child | None = None

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def write_chain(self) -> None:
        """Write the certificate as a mounted Secret would come: each file at once."""
        for name, content in self.chain.data().items():
            new = self.folder / f".{name}"
            new.write_bytes(content)
            new.rename(self.folder / name)

    def start(self, *, wait: bool = True) -> None:
        """Start it; unless told otherwise, until it says that it is ready."""
        self.write_chain()
        own = {
            "KUBECONFIG": str(self.kubeconfig),
            "QUANTFLEET_WATCH_NAMESPACES": ",".join(self.namespaces),
            "QUANTFLEET_SERVER_PORT": str(self.port),
            "QUANTFLEET_TLS_CERTIFICATE_FILE": str(self.folder / "tls.crt"),
            "QUANTFLEET_TLS_KEY_FILE": str(self.folder / "tls.key"),
            "PYTHONUNBUFFERED": "1",
        }
        self.child = child_process.start(
            "server",
            [sys.executable, "-m", "quantfleet_server"],
            folder=self.folder,
            environment={**os.environ, **own, **self.settings},
        )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Until /readyz says yes; a server that ended before raises with its last words."""

        def ready() -> bool:
            if self.child is None or not self.child.alive():
                raise RuntimeError(f"the server ended:\n{self.log()}")
            try:
                return self.client().get("/readyz").status == 200
            except (OSError, urllib3.exceptions.HTTPError):
                return False

        try:
            wait_for("server ready", ready, seconds=READY_SECONDS)
        except TimeoutError as late:
            raise TimeoutError(f"{late}\n{self.log()}") from late

    def client(self, token: str = "") -> Client:
        """A client with a token."""
        return Client(url=self.url, authority=self.authority, token=token)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that have these labels."""
        text: str = self.client().get("/metrics").body["text"].decode()
        return child_process.metric_of(text, name, labels)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.child is not None:
            child_process.kill(self.child)

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        assert self.child is not None
        return child_process.stop(self.child)

    def log(self) -> str:
        return "" if self.child is None else self.child.tail(80)


@contextmanager
def server_process(
    kubeconfig: Path,
    folder: Path,
    *,
    namespaces: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """A server that runs and is ready; killed at the end."""
    running = ServerProcess(
        kubeconfig=kubeconfig, namespaces=namespaces, folder=folder, settings=settings or {}
    )
    try:
        running.start()
        yield running
    finally:
        running.kill()

"""An HTTPS server in the test's process that stands where the status server does.

It keeps what worker pods post, and answers as it is told: `answer` may be replaced at any time.
"""

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from quantfleet_api.report import ProgressReport

PATH = "/apis/v1alpha1/namespaces/n/quantizationjobs/j/progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a post is answered with."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)


def taken(**answer: Any) -> Reply:
    """A report that was taken."""
    return Reply(body=json.dumps(answer).encode())


@dataclass(slots=True)
class Listener:
    """What was heard; `changed` is notified of each post."""

    folder: Path
    answer: Callable[[ProgressReport], Reply] = lambda report: taken()
    heard: list[ProgressReport] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    port: int = 0
    server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where to post."""
        return f"https://localhost:{self.port}{PATH}"

    @property
    def ca_file(self) -> Path:
        """The certificate to trust."""
        return self.folder / "ca" / "ca.crt"

    @property
    def token_file(self) -> Path:
        """The token to send."""
        return self.folder / "token"

    def wait(self, ready: Callable[["Listener"], bool], *, seconds: float = 60) -> None:
        """Until what was heard is as wanted."""
        with self.changed:
            assert self.changed.wait_for(lambda: ready(self), seconds), self.heard

    def new_certificate(self, name: str) -> None:
        """Another key and certificate for the server, and trust in it for the clients."""
        key, certificate = self.folder / f"{name}.key", self.folder / f"{name}.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost", "-days", "1"],
            check=True, capture_output=True,
        )  # fmt: skip
        self.ca_file.parent.mkdir(exist_ok=True)
        self.ca_file.write_bytes(certificate.read_bytes())

    def start(self, name: str, *, port: int = 0) -> None:
        """Listen with a certificate; the port stays once it is chosen."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        server = ThreadingHTTPServer(("127.0.0.1", port or self.port), _handler(self, context))
        self.server, self.port = server, server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Listen no more."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


@contextmanager
def listening(folder: Path) -> Iterator[Listener]:
    """A listener with a certificate and a token, until the end of the block."""
    folder.mkdir(exist_ok=True)
    listener = Listener(folder)
    listener.new_certificate("first")
    listener.token_file.write_text("first.token\n")
    listener.start("first")
    try:
        yield listener
    finally:
        listener.stop()


def _handler(listener: Listener, context: ssl.SSLContext) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            self.request.settimeout(30)
            try:
                self.request = context.wrap_socket(self.request, server_side=True)
            except (ssl.SSLError, OSError):  # a client that trusts another certificate
                self.request.close()
                self.ended = True
            super().setup()

        def handle(self) -> None:
            if not getattr(self, "ended", False):
                super().handle()

        def finish(self) -> None:
            if not getattr(self, "ended", False):
                super().finish()
            self.request.close()

        def do_POST(self) -> None:
            assert self.path == PATH
            body = self.rfile.read(int(self.headers["Content-Length"]))
            report = ProgressReport.model_validate_json(body)
            with listener.changed:
                listener.heard.append(report)
                listener.tokens.append(self.headers["Authorization"])
                listener.changed.notify_all()
            reply = listener.answer(report)
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
            except OSError:  # the client did not wait
                self.close_connection = True

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    return Handler

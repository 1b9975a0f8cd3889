"""One progress report over HTTPS: what is sent, and what the answer means. Used by `reporter`.

Token and certificates are read from their files for each report, because both are replaced while a
job runs. The token goes into a header and nowhere else; no error message has it.
"""

import http.client
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from quantfleet_api.report import MOST_BODY_BYTES, ProgressReport, ReportAnswer

SEND_SECONDS = 5.0
"""Longest wait for any step of one report."""
MOST_RETRY_SECONDS = 300.0

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class NotTaken(Exception):
    """The report did not arrive, or was refused; the message says why, on one line."""

    def __init__(self, why: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.status = status  # of the answer; 0 = there was none
        self.retry_after = retry_after  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a pod reports, and the files that let it."""

    url: str
    token_file: Path
    ca_file: Path | None  # None = the certificates that this machine trusts


def target_of(environment: Mapping[str, str]) -> Target | None:
    """The target that the operator gave; None where workers do not report."""
    url = environment.get("QUANTFLEET_PROGRESS_URL", "")
    token = environment.get("QUANTFLEET_PROGRESS_TOKEN_FILE", "")
    ca = environment.get("QUANTFLEET_PROGRESS_CA_FILE", "")
    if not url or not token:
        return None
    return Target(url=url, token_file=Path(token), ca_file=Path(ca) if ca else None)


def send(target: Target, report: ProgressReport) -> ReportAnswer:
    """Send one report; NotTaken where it was not taken."""
    body = report.model_dump_json(by_alias=True, exclude_defaults=True).encode()
    try:
        status, headers, answer = _post(target, body)
    except (OSError, http.client.HTTPException) as error:
        raise NotTaken(_readable(error)) from None
    if status != 200:
        why = f"{status} {http.client.responses.get(status, '')}".strip()
        raise NotTaken(why, status=status, retry_after=retry_after(headers))
    return _understood(answer)


def _post(target: Target, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
    parts = urlsplit(target.url)
    if parts.scheme != "https" or not parts.hostname:
        raise NotTaken("the address must begin with https://, since a token is sent there")
    trust = None if target.ca_file is None else target.ca_file.read_text()
    context = ssl.create_default_context(cadata=trust)
    headers = {"Authorization": f"Bearer {_token(target)}", "Content-Type": "application/json"}
    connection = http.client.HTTPSConnection(
        parts.hostname, parts.port, timeout=SEND_SECONDS, context=context
    )
    try:
        connection.request("POST", parts.path or "/", body, headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return response.status, found, response.read(MOST_BODY_BYTES)
    finally:
        connection.close()


def _token(target: Target) -> str:
    text = target.token_file.read_text().strip()
    if not _TOKEN.fullmatch(text):
        raise NotTaken(f"{target.token_file} holds no token")
    return text


def _understood(answer: bytes) -> ReportAnswer:
    """What a later server adds to its answer is passed over."""
    known = {field.alias for field in ReportAnswer.model_fields.values()}
    try:
        content = json.loads(answer)
        return ReportAnswer.model_validate({k: v for k, v in content.items() if k in known})
    except (ValueError, AttributeError, ValidationError):
        raise NotTaken("the answer is not one of a status server") from None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from a header in seconds or as a time by the server's own clock."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return min(float(text), MOST_RETRY_SECONDS)
    try:
        until, now = (parsedate_to_datetime(value) for value in (text, headers.get("date", "")))
        return min(max((until - now).total_seconds(), 0.0), MOST_RETRY_SECONDS)
    except (ValueError, TypeError):
        return None


def _readable(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."

"""The last words of a worker: JSON in its container's termination message (rule C8).

Written by each pod at its end, and at its start with what it needs, since a pod that runs out of
memory has no time for words. Kept by the kubelet (at most 4,096 bytes), read by the operator. The
digest of what was published travels this way, because it needs no network and no rights. Whatever
stands there instead, such as the tail of a log, is taken as the cause.
"""

import json
from typing import Annotated

from pydantic import ConfigDict, Field, StrictInt, ValidationError

from quantfleet_api.fields import Manifest

MOST_BYTES = 4096
"""Longest termination message that a kubelet keeps."""
MOST_CAUSE = 1024
"""Longest cause, in characters; it may take up to four bytes each."""


class Termination(Manifest):
    """What a worker says when it ends; all of it may be absent."""

    model_config = ConfigDict(extra="ignore")

    manifest_digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    size_bytes: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] | None = None
    file_count: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None = None
    warnings: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None = None
    memory_bytes: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] | None = None
    """What the ranks of the pod need by the plan, in bytes."""
    cause: Annotated[str, Field(max_length=MOST_CAUSE)] = ""


def termination_text(termination: Termination) -> str:
    """The message to leave: one line of ASCII JSON of at most 4,096 bytes."""
    data = termination.model_dump(by_alias=True, exclude_none=True)
    while len(text := json.dumps(data, separators=(",", ":"))) > MOST_BYTES:
        data["cause"] = data["cause"][: len(data["cause"]) * 3 // 4]
    return text


def parse_termination(text: str) -> Termination:
    """What a message says. Never raises: a message that is no such JSON is the cause itself."""
    try:
        return Termination.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError:
        return Termination(cause=_readable(text))


def _readable(text: str) -> str:
    """The end of a text, where logs say what happened, on one line of printable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[-MOST_BYTES:]).split())
    return line[-MOST_CAUSE:]

"""Settings of the server's process, from its environment; each is documented at its field."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "QUANTFLEET_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server is told when it starts."""

    certificate_file: Path
    """QUANTFLEET_TLS_CERTIFICATE_FILE: its certificate chain (PEM); read anew when it changes."""
    key_file: Path
    """QUANTFLEET_TLS_KEY_FILE: the key of that certificate (PEM)."""
    namespaces: tuple[str, ...] = ()
    """QUANTFLEET_WATCH_NAMESPACES, separated by commas; none = all of the cluster."""
    port: int = 8443
    """QUANTFLEET_SERVER_PORT: where it listens, on all addresses; HTTPS only."""
    write_seconds: int = 10
    """QUANTFLEET_WRITE_SECONDS: least time between two writes of a job's progress into its status;
    a new stage is written after a second, the end at once."""
    writes_per_second: int = 20
    """QUANTFLEET_WRITES_PER_SECOND: most writes into statuses, over all jobs."""
    token_cache_seconds: int = 20
    """QUANTFLEET_TOKEN_CACHE_SECONDS: how long the API server's yes to a token counts (at most 60).
    The API server itself remembers it for 10 s, so the token of a deleted pod is refused after at
    most the sum."""
    reports_per_second: int = 2
    """QUANTFLEET_REPORTS_PER_SECOND: what a pod may report in the long run; 20 more at once."""
    heartbeat_seconds: int = 15
    """QUANTFLEET_HEARTBEAT_SECONDS: how often a watcher to whom nothing was sent gets a comment."""
    certificate_seconds: int = 10
    """QUANTFLEET_CERTIFICATE_SECONDS: how often certificate and key are looked at for changes."""


def settings_from(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in an environment; raises ValueError, naming the variable that is wrong."""

    def text(name: str) -> str:
        return environment.get(PREFIX + name, "").strip()

    def number(name: str, default: int, *, most: int = 2**31 - 1) -> int:
        value = text(name)
        if value and not (value.isascii() and value.isdigit() and 1 <= int(value) <= most):
            raise ValueError(f"{PREFIX}{name} must be from 1 to {most}, got {value!r}")
        return int(value) if value else default

    def file(name: str) -> Path:
        if not text(name):
            raise ValueError(f"{PREFIX}{name} must name a file")
        return Path(text(name))

    names = (name.strip() for name in text("WATCH_NAMESPACES").split(","))
    return Settings(
        certificate_file=file("TLS_CERTIFICATE_FILE"),
        key_file=file("TLS_KEY_FILE"),
        namespaces=tuple(sorted({name for name in names if name})),
        port=number("SERVER_PORT", 8443, most=65535),
        write_seconds=number("WRITE_SECONDS", 10),
        writes_per_second=number("WRITES_PER_SECOND", 20),
        token_cache_seconds=number("TOKEN_CACHE_SECONDS", 20, most=60),
        reports_per_second=number("REPORTS_PER_SECOND", 2),
        heartbeat_seconds=number("HEARTBEAT_SECONDS", 15),
        certificate_seconds=number("CERTIFICATE_SECONDS", 10),
    )

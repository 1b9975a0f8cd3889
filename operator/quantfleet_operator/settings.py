"""Settings of the operator's process, from its environment; each is documented at its field."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "QUANTFLEET_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator is told when it starts."""

    namespaces: tuple[str, ...] = ()
    """QUANTFLEET_WATCH_NAMESPACES, separated by commas; none = all of the cluster."""
    worker_image: str = ""
    """QUANTFLEET_WORKER_IMAGE: image of workers whose job names none; "" = jobs must name one."""
    progress_url: str = ""
    """QUANTFLEET_PROGRESS_URL: address of the status server (https://HOST[:PORT]) that workers
    report to; "" = they do not, and get no token."""
    progress_ca: str = ""
    """Certificates (PEM) to trust there: the content of the file QUANTFLEET_PROGRESS_CA_FILE, or
    what the Secret below holds."""
    server_secret: str = ""
    """QUANTFLEET_SERVER_SECRET: Secret with the status server's certificate, whose authority
    workers trust; "" = none."""
    server_namespace: str = ""
    """QUANTFLEET_SERVER_NAMESPACE: the namespace of that Secret."""
    server_secret_managed: bool = True
    """QUANTFLEET_SERVER_SECRET_MANAGED: whether the operator fills and renews that Secret; false =
    somebody else does."""
    certificate_seconds: int = 60
    """QUANTFLEET_CERTIFICATE_SECONDS: how often that Secret is looked at."""
    restart_delay_seconds: int = 5
    """QUANTFLEET_RESTART_DELAY_SECONDS: wait before the second restart for the same cause, doubled
    for each further one; the first restart is immediate."""
    metrics_port: int = 0
    """QUANTFLEET_METRICS_PORT: Prometheus metrics over HTTP; 0 = none."""
    liveness_port: int = 0
    """QUANTFLEET_LIVENESS_PORT: /healthz and /readyz over HTTP; 0 = none."""
    workers: int = 8
    """QUANTFLEET_RECONCILE_WORKERS: jobs that are reconciled at the same time."""
    resync_seconds: int = 300
    """QUANTFLEET_RESYNC_SECONDS: how often everything is listed and looked at anew."""


def settings_from(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in an environment; raises ValueError for a number that is none."""

    def text(name: str) -> str:
        return environment.get(PREFIX + name, "").strip()

    def number(name: str, default: int) -> int:
        value = text(name)
        if value and not value.isdigit():
            raise ValueError(f"{PREFIX}{name} must be a whole number, got {value!r}")
        return int(value) if value else default

    def truth(name: str, default: bool) -> bool:
        value = text(name).lower()
        if value not in ("", "true", "false"):
            raise ValueError(f"{PREFIX}{name} must be true or false, got {value!r}")
        return value == "true" if value else default

    names = (name.strip() for name in text("WATCH_NAMESPACES").split(","))
    ca_file = text("PROGRESS_CA_FILE")
    return Settings(
        namespaces=tuple(sorted({name for name in names if name})),
        worker_image=text("WORKER_IMAGE"),
        progress_url=text("PROGRESS_URL"),
        progress_ca=Path(ca_file).read_text() if ca_file else "",
        server_secret=text("SERVER_SECRET"),
        server_namespace=text("SERVER_NAMESPACE"),
        server_secret_managed=truth("SERVER_SECRET_MANAGED", True),
        certificate_seconds=max(1, number("CERTIFICATE_SECONDS", 60)),
        restart_delay_seconds=number("RESTART_DELAY_SECONDS", 5),
        metrics_port=number("METRICS_PORT", 0),
        liveness_port=number("LIVENESS_PORT", 0),
        workers=max(1, number("RECONCILE_WORKERS", 8)),
        resync_seconds=max(1, number("RESYNC_SECONDS", 300)),
    )

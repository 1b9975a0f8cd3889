"""Keeps the status server's certificate in its Secret, and tells what workers are to trust (C19).

The chart makes the Secret empty, so that the operator needs no right to create any. One that
somebody else fills (`existingSecret`) is only read. Losing reports never fails a job, so jobs do
not wait for the certificate: a job's ConfigMap gets the authority as soon as it is known.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from quantfleet_operator.answers import ApiError
from quantfleet_operator.certificates import AUTHORITY, Chain, chain_of, renewed
from quantfleet_operator.cluster import Cluster
from quantfleet_operator.observed import Raw
from quantfleet_operator.settings import Settings

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 2.0
"""Until the next look where the one before did not succeed."""


@dataclass(slots=True, kw_only=True)
class SecretKeeper:
    """Looks at the Secret now and then; `trust` is called when what is to be trusted changed."""

    cluster: Cluster
    settings: Settings
    clock: Callable[[], datetime]
    trust: Callable[[str], None]
    _trusted: str = ""

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                done = await self.look()
            except ApiError as error:
                logger.warning("certificate not looked at: %s", error)
                done = False
            await asyncio.sleep(self.settings.certificate_seconds if done else AGAIN_SECONDS)

    async def look(self) -> bool:
        """Brings the Secret to what it should be; False where there is nothing to trust yet."""
        namespace, name = self.settings.server_namespace, self.settings.server_secret
        raw = await self.cluster.find("v1", "Secret", namespace, name)
        if raw is None:
            logger.error("the Secret %s/%s of the status server is missing", namespace, name)
            return False
        found = chain_of(_data(raw))
        if self.settings.server_secret_managed:
            names = names_of(self.settings.progress_url)
            chain = renewed(found, names, self.clock())
            if chain != found:
                await self._write(raw, chain)
                logger.info("certificate of the status server renewed secret=%s", name)
            found = chain
        authority = found.authority.decode(errors="replace")
        if not authority:
            logger.error("the Secret %s/%s has no %s", namespace, name, AUTHORITY)
            return False
        if authority != self._trusted:
            self._trusted = authority
            self.trust(authority)
        return True

    async def _write(self, raw: Raw, chain: Chain) -> None:
        """Writes to the version that was looked at: of two operators, one wins."""
        data = {key: base64.b64encode(value).decode() for key, value in chain.data().items()}
        await self.cluster.fill_secret(raw, data)


def names_of(url: str) -> tuple[str, ...]:
    """What the server is called: all names of its Service, and localhost for port-forwarding."""
    host = urlsplit(url).hostname or ""
    parts = host.split(".")
    names = [host]
    if len(parts) == 3 and parts[2] == "svc":
        service, namespace, _ = parts
        names += [f"{service}.{namespace}", service, f"{host}.cluster.local"]
    return (*names, "localhost")


def _data(raw: Raw) -> dict[str, bytes]:
    found = {}
    for key, value in (raw.get("data") or {}).items():
        try:
            found[key] = base64.b64decode(value)
        except binascii.Error:
            continue
    return found

"""The server's certificate: read from files, and anew when they change, without a restart.

The files are a mounted Secret, which the kubelet exchanges as a whole. Connections that are open
keep the certificate that they began with.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from quantfleet_server.metrics import CERTIFICATES

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Certificate:
    """A TLS context whose certificate follows two files."""

    certificate_file: Path
    key_file: Path
    context: ssl.SSLContext
    _loaded: tuple[bytes, bytes] = (b"", b"")

    def load(self) -> bool:
        """Takes up the files where they changed; whether they did. Raises OSError (of which
        ssl.SSLError is one) where they cannot be read or do not belong together."""
        found = (self.certificate_file.read_bytes(), self.key_file.read_bytes())
        if found == self._loaded:
            return False
        self.context.load_cert_chain(self.certificate_file, self.key_file)
        self._loaded = found
        CERTIFICATES.inc()
        logger.info("certificate taken up file=%s", self.certificate_file)
        return True

    async def follow(self, seconds: float) -> None:
        """Looks at the files for ever; where they are wrong, the old certificate stays."""
        while True:
            await asyncio.sleep(seconds)
            try:
                self.load()
            except OSError as error:
                logger.error("certificate not taken up: %s", error)


def certificate_of(certificate_file: Path, key_file: Path) -> Certificate:
    """The certificate in two files; raises OSError where there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    made = Certificate(certificate_file=certificate_file, key_file=key_file, context=context)
    made.load()
    return made

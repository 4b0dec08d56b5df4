"""TLS for listeners: a certificate and its key, refused before anything listens where they are none."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadValue


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """What a listener needs; BadValue where the files are not a certificate and its key."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # Asked for a password, OpenSSL would ask the terminal.
            context.load_cert_chain(self.certificate, self.key, lambda: "")
        except (OSError, ValueError) as error:
            raise BadValue(f"TLS certificate {self.certificate} cannot be used: {error}") from error
        return context


def tls_of(certificate: Path | None, key: Path | None) -> Tls | None:
    """What a command line says of TLS; None: nothing."""
    if certificate is None:
        if key is not None:
            raise BadValue(f"--tls-key {key} without a certificate: give --tls-cert as well")
        return None
    return Tls(certificate, key)

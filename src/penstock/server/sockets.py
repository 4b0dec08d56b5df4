"""Parses and binds the addresses to listen on, loads their TLS files, and limits replies that peers do not read."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from penstock.core.names import shown
from penstock.errors import BadValue

log = logging.getLogger("penstock")

# The most unread bytes of all peers. A slow reader has one or two replies of some megabytes.
MAX_UNREAD_BYTES = 128 * 1024 * 1024
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^:\[\]/]+)):([0-9]{1,5})")


class Address:
    """One host and port."""

    def __init__(self, what: str, text: str) -> None:
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[3]) > 65535:
            raise BadValue(f"{what} {shown(text)} is not an address: give host:port, such as 127.0.0.1:7379")
        self._what = what
        #: The host as given: a name or an IP address.
        self.host: str = match[1] or match[2]
        self._port = int(match[3])
        self._family, self._where = self._resolve()

    def _resolve(self) -> tuple[int, str]:
        try:
            found = socket.getaddrinfo(self.host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise BadValue(f"{self._what} {self.host} cannot be resolved ({error}): give an IP address") from error
        family, _, _, _, where = found[0]
        return family, str(where[0])

    @property
    def loopback(self) -> bool:
        """Whether the address can be reached only from this host."""
        return ipaddress.ip_address(self._where.partition("%")[0]).is_loopback

    def must_be_guarded(self, guarded: bool) -> None:
        """Raise BadValue unless the address is loopback or callers need a token."""
        if not guarded and not self.loopback:
            raise BadValue(
                f"{self._what} {self.shown(self._port)} can be reached from other hosts without a token: "
                "give --token-file or PENSTOCK_TOKEN, or listen on 127.0.0.1"
            )

    def bind(self) -> socket.socket:
        """A bound socket. Raises BadValue if the address is in use."""
        # asyncio sets TCP_NODELAY only if the protocol is named; without it each answer may be delayed by 40 ms.
        bound = socket.socket(self._family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._where, self._port))
        except OSError as error:
            bound.close()
            raise BadValue(
                f"cannot listen on {self._what} {self.shown(self._port)} ({error.strerror}): choose another port"
            ) from error
        bound.setblocking(False)
        return bound

    def shown(self, port: int) -> str:
        """The address as text, with the real port."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """The SSL context. Raises BadValue if the files are not a certificate and its key."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # Without this, OpenSSL would ask for the password of an encrypted key on the terminal.
            context.load_cert_chain(self.certificate, self.key, lambda: "")
        except (OSError, ValueError) as error:
            raise BadValue(f"TLS certificate {self.certificate} cannot be used: {error}") from error
        return context


def tls_of(certificate: Path | None, key: Path | None) -> Tls | None:
    """The TLS settings from the command line; None without --tls-cert."""
    if certificate is None:
        if key is not None:
            raise BadValue(f"--tls-key {key} without a certificate: give --tls-cert as well")
        return None
    return Tls(certificate, key)


class Unread:
    """Closes the connections that stopped reading first, if all together have too many unread bytes."""

    def __init__(self) -> None:
        self._sizes: dict[
            asyncio.Transport, int
        ] = {}  # transport -> unread bytes, in the order in which they stopped reading

    def add(self, transport: asyncio.Transport) -> None:
        """Add a connection whose peer has stopped reading."""
        self._sizes[transport] = transport.get_write_buffer_size()
        while len(self._sizes) > 1 and sum(self._sizes.values()) > MAX_UNREAD_BYTES:
            oldest = next(iter(self._sizes))
            peer = oldest.get_extra_info("peername")
            log.warning("too many unread reply bytes; disconnecting %s, which stopped reading first", peer)
            self.remove(oldest)
            oldest.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Remove a connection whose peer reads again or is gone."""
        self._sizes.pop(transport, None)

"""Connections to addresses that were checked: a name is resolved once, all its addresses are checked, one is used."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address

import httpcore

from penstock.callbacks.addresses import Address
from penstock.callbacks.allow import AllowList

Resolve = Callable[[str, int], Awaitable[list[str]]]
SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


async def resolve(host: str, port: int) -> list[str]:
    """Every address of a name, as the system resolves it, the preferred one first."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Dialler(httpcore.AsyncNetworkBackend):
    """What httpcore connects by. TLS comes after it, and verifies the host's name, not the address."""

    def __init__(self, allowed: AllowList, resolve: Resolve = resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None,  # noqa: ASYNC109 (httpcore's)
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        """Connect to the first address that answers; Refused where any of them must not be called."""
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in await self._addresses(host, port):
            try:
                return await self._plain.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            texts = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is too long
            why = error.strerror if isinstance(error, OSError) else error
            raise httpcore.ConnectError(f"{host} cannot be resolved: {why}") from None
        addresses = [ip_address(text) for text in texts]
        for address in addresses:
            self._allowed.check_address(host, address)
        return addresses

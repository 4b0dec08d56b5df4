"""One callback: a signed POST to a checked address, and how its response settles the task."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address

import httpcore
import msgspec

from penstock.app.current import Bury, Retry
from penstock.callbacks.allow_list import Address, AllowList, Refused, Settings, Target, parse
from penstock.callbacks.signing import header_text, message_id, signed_headers
from penstock.core import codec
from penstock.core.task import Record

Resolve = Callable[[str, int], Awaitable[list[str]]]
SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


async def resolve(host: str, port: int) -> list[str]:
    """Every address of a name, as the system resolves it, the preferred one first."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Dialler(httpcore.AsyncNetworkBackend):
    """The network backend of httpcore, which connects only to allowed addresses.

    TLS is layered on top and verifies the host name, not the address.
    """

    def __init__(self, allowed: AllowList, resolve: Resolve = resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None,  # noqa: ASYNC109 (httpcore's)
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        """Connect to the first address that answers. Raises Refused if any address of the host is not allowed."""
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
            self._allowed.check_address(host, address, port)
        return addresses


# The longest response that is kept; the rest is not read.
MAX_ANSWER = 1024 * 1024
# The longest wait that a response may request with Retry-After.
MAX_RETRY_AFTER = 3600.0
# How much of an error response becomes part of the reason.
_QUOTED = 200
_IDLE_SECONDS = 15.0


class Client:
    """Calls callbacks from one event loop and reuses connections."""

    def __init__(self, settings: Settings, resolve: Resolve = resolve, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            network_backend=Dialler(settings.allowed, resolve),
            max_connections=None,
            max_keepalive_connections=100,
            keepalive_expiry=_IDLE_SECONDS,
        )

    async def call(self, tube: str, record: Record) -> object:
        """POST the task. Returns its result; raises Bury or Retry if the call failed."""
        assert record.options.callback is not None
        try:
            target = parse(record.options.callback)
            self._settings.allowed.check_host(target)
            return await self._post(target, tube, record)
        except Refused as refused:
            raise Bury(f"callback refused: {refused}") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise Retry(None, f"callback failed: {type(error).__name__} {error}".rstrip()) from None

    async def _post(self, target: Target, tube: str, record: Record) -> object:
        body = _body(record.payload)
        url = httpcore.URL(
            scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
        )
        headers = _headers(self._settings.keys_for(target), target, tube, record, body)
        async with self._pool.stream("POST", url, headers=list(headers.items()), content=body) as response:
            wanted = record.address is not None or record.reply_to is not None
            return _result_or_raise(response, *await _read(response), wanted=wanted)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


def _headers(keys: Sequence[bytes], target: Target, tube: str, record: Record, body: bytes) -> dict[str, str]:
    return {
        "Host": target.authority,
        "User-Agent": "penstock",
        "Accept-Encoding": "identity",  # so that Content-Length is the real length
        "Content-Type": "application/octet-stream" if codec.is_raw(record.payload) else "application/json",
        "Content-Length": str(len(body)),
        "Penstock-Tube": header_text(tube),
        "Penstock-Id": str(record.id),
        "Penstock-Attempt": str(record.attempts),
        **signed_headers(keys, message_id(tube, record.id), int(time.time()), body, target.url),
    }


def _body(payload: bytes) -> bytes:
    """The request body: bytes unchanged, anything else as JSON."""
    return payload[1:] if codec.is_raw(payload) else payload


async def _read(response: httpcore.Response) -> tuple[bytes, bool]:
    """The body of the response, and whether it is complete."""
    content = bytearray()
    async for part in response.aiter_stream():
        content += part
        if len(content) > MAX_ANSWER:
            return bytes(content[:MAX_ANSWER]), False
    return bytes(content), True


def _result_or_raise(response: httpcore.Response, content: bytes, whole: bool, *, wanted: bool) -> object:
    """The result of the task for a response; raises Bury or Retry. `wanted`: whether the result will be kept."""
    status, headers = response.status, {name.lower(): value for name, value in response.headers}
    if 200 <= status < 300:
        if not whole and wanted:
            raise Bury(f"callback was answered with {status}, but its result is over {MAX_ANSWER} bytes")
        return _result(content, headers.get(b"content-type", b"")) if wanted else None
    quoted = "".join(char for char in content[:_QUOTED].decode("utf-8", "replace") if char.isprintable())
    reason = f"callback was answered with {status}: {quoted}" if quoted else f"callback was answered with {status}"
    if status == 410:
        raise Bury(reason)
    if 300 <= status < 400:
        reason = f"callback was answered with {status}: redirects are not followed"
    raise Retry(_retry_after(status, headers.get(b"retry-after", b"")), reason)


def _result(content: bytes, kind: bytes) -> object:
    """The response body as a value: JSON and text by content type, an empty body as None, anything else as bytes."""
    if not content:
        return None
    media = kind.partition(b";")[0].strip().lower()
    try:
        if media == b"application/json" or media.endswith(b"+json"):
            return msgspec.json.decode(content)
        return content.decode() if media.startswith(b"text/") else content
    except (msgspec.DecodeError, ValueError, RecursionError):
        return content


def _retry_after(status: int, value: bytes) -> float | None:
    """The delay in seconds that an overloaded host asks for by Retry-After; None to use the back-off."""
    if status not in (429, 503) or not value.isdigit():
        return None
    return min(float(value[:10]), MAX_RETRY_AFTER)

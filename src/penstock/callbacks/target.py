"""A callback's URL, taken apart once, so that what is checked and what is called cannot differ."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

import msgspec

from penstock.callbacks.addresses import Address
from penstock.callbacks.refusal import Refused

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_PORTS = {"http": 80, "https": 443}


class Target(msgspec.Struct, frozen=True):
    """Where to call: `host` is a name in small letters without a last dot, or an address without brackets."""

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None = None  # where the host is one

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse(url: str) -> Target:
    """The parts of a URL; Refused where it is anything but a plain http or https one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refused(f"its URL cannot be read: {error}") from None
    if parts.scheme not in _PORTS:
        raise Refused(f"its scheme {parts.scheme!r} is not http or https")
    if "@" in parts.netloc:
        raise Refused("its URL has user info, which is not sent")
    if "\\" in url or not url.isascii() or not url.isprintable() or " " in url:
        raise Refused("its URL has characters that must be escaped")
    host = (parts.hostname or "").removesuffix(".")
    address = _address(host, bracketed="[" in parts.netloc)
    query = f"?{parts.query}" if parts.query else ""
    return Target(parts.scheme, host, port or _PORTS[parts.scheme], (parts.path or "/") + query, address)


def _address(host: str, *, bracketed: bool) -> Address | None:
    """The address that a host is, None where it is a name; Refused where it is neither."""
    try:
        address = ip_address(host)
        if bracketed == isinstance(address, IPv6Address) and "%" not in host:
            return address
    except ValueError:
        pass
    last = host.rpartition(".")[2]
    # 2130706433, 0x7f000001, 127.1 and 0177.0.0.1 are addresses to resolvers, and to no reader.
    if bracketed or last.isdigit() or last.startswith("0x") or not _NAME.fullmatch(host) or len(host) > 253:
        raise Refused(f"its host {host!r} is neither a name nor an address in its usual form")
    return None

"""Which hosts and addresses may be called back.

A callback's URL is parsed once, so that what is checked is what is called. An address that is not listed as public is
not public: `ipaddress` alone accepts addresses that translators and clouds map to internal ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

import msgspec

from penstock.core.names import shown
from penstock.errors import BadValue


class Refused(Exception):
    """The callback may not be called; the message says why, and what would allow it."""


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Special-purpose networks (IANA's registries), and addresses of cloud metadata services.
_SPECIAL_4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",
    )
)  # fmt: skip
# Only global unicast (2000::/3) is public. Mapped (::ffff:…), translated (64:ff9b::…), local and multicast addresses
# are outside of it. Inside, these networks embed an IPv4 address that would bypass this filter, or are not assigned.
_GLOBAL_6 = IPv6Network("2000::/3")
_SPECIAL_6 = tuple(
    IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)


def is_public(address: Address) -> bool:
    """Whether the address is on the public Internet, so that calling it reaches nothing internal."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    scoped = address.scope_id is not None
    return not scoped and address in _GLOBAL_6 and not any(address in network for network in _SPECIAL_6)


_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_PORTS = {"http": 80, "https": 443}


class Target(msgspec.Struct, frozen=True):
    """The parsed URL of a callback: `host` is a lower-case name without a trailing dot, or an IP without brackets."""

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None = None  # set if the host is an IP address

    @property
    def url(self) -> str:
        """The normalised URL, which is called and signed."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse(url: str) -> Target:
    """Parse a URL. Raises Refused unless it is a plain http or https URL."""
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
    """The address of a host, None if it is a name. Raises Refused if it is neither."""
    try:
        address = ip_address(host)
        if bracketed == isinstance(address, IPv6Address) and "%" not in host:
            return address
    except ValueError:
        pass
    last = host.rpartition(".")[2]
    # Resolvers accept 2130706433, 0x7f000001, 127.1 and 0177.0.0.1 as addresses, but no reader recognises them.
    if bracketed or last.isdigit() or last.startswith("0x") or not _NAME.fullmatch(host) or len(host) > 253:
        raise Refused(f"its host {host!r} is neither a name nor an address in its usual form")
    return None


class Entry(msgspec.Struct, frozen=True):
    """One entry of the list: a name, its subdomains, any name (`*`), or a network; for one port or for all."""

    name: str = ""
    below: bool = False
    network: Network | None = None
    port: int | None = None

    def has_host(self, target: Target) -> bool:
        """Whether this entry matches the host and port of a URL."""
        if self.port not in (None, target.port):
            return False
        if target.address is not None:
            return self.has_address(target.address, target.port)
        if self.below:
            return target.host.endswith("." + self.name)
        return self.name == "*" or (bool(self.name) and self.name == target.host)

    def has_address(self, address: Address, port: int) -> bool:
        """Whether this entry is a network that contains the address, and matches the port."""
        network = self.network
        if network is None or self.port not in (None, port):
            return False
        return address.version == network.version and address in network


class AllowList(msgspec.Struct, frozen=True):
    """The hosts that may be called."""

    entries: tuple[Entry, ...] = ()

    def check_host(self, target: Target) -> None:
        """Raise Refused unless the host of a URL is on the list."""
        if any(entry.has_host(target) for entry in self.entries):
            return
        if target.address is not None:
            raise Refused(f"{target.authority} is not on the allow-list: add the address or its network")
        raise Refused(f"host {target.authority} is not on the allow-list: add it")

    def check_address(self, host: str, address: Address, port: int) -> None:
        """Raise Refused unless the resolved address is public or in a network of the list."""
        if not is_public(address) and not any(entry.has_address(address, port) for entry in self.entries):
            raise Refused(f"{host} is at {address}, which is not public: add the address or its network")


def allow_list(entries: Iterable[str]) -> AllowList:
    """Parse an allow-list; each entry has a form that `entry` accepts."""
    return AllowList(tuple(map(entry, entries)))


_WITH_PORT = re.compile(r"(\[.+\]|[^:]+):([1-9][0-9]{0,4})")


def entry(text: str) -> Entry:
    """Parse `hooks.example.org`, `*.example.org`, `10.1.2.3`, `10.1.0.0/16`, `::1` or `*`, with an optional `:port`."""
    match = None if _network(text) else _WITH_PORT.fullmatch(text)
    host, port = (match[1], int(match[2])) if match else (text, None)
    network = _network(host)
    if port is None or port < 65536:
        if network is not None:
            return Entry(network=network, port=port)
        if host == "*":
            return Entry("*", port=port)
        below = host.startswith("*.")
        name = host.removeprefix("*.")
        if _is_name(name):
            return Entry(name.lower().removesuffix("."), below, port=port)
    raise BadValue(
        f"allowed host {shown(text)} is not a name, address or network: give hooks.example.org, *.example.org, "
        "10.1.2.3 or 10.1.0.0/16, without scheme; a port may follow, such as hooks.example.org:8443"
    )


def _network(text: str) -> Network | None:
    """Parse an IP address or a CIDR range as a network; None if the text is neither."""
    try:
        return ip_network(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _is_name(text: str) -> bool:
    try:
        target = parse(f"http://{text}/")
    except Refused:
        return False
    return target.address is None and target.host == text.lower().removesuffix(".")


# Concurrent calls per host.
PER_HOST = 8


class Settings(msgspec.Struct, frozen=True):
    """Which hosts may be called, the keys that sign calls, and the number of concurrent calls per host.

    `receivers` have their own keys; `keys` sign the calls to all others.
    """

    allowed: AllowList
    keys: tuple[bytes, ...]
    per_host: int = PER_HOST
    receivers: tuple[tuple[Entry, bytes], ...] = ()

    def keys_for(self, target: Target) -> tuple[bytes, ...]:
        """The keys that sign calls to a URL. Raises Refused if there is none."""
        keys = tuple(key for entry, key in self.receivers if entry.has_host(target)) or self.keys
        if not keys:
            raise Refused(f"there is no secret for {target.authority}: add one to the secrets")
        return keys

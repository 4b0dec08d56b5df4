"""Which addresses are the public Internet's. Knows no names and no sockets.

What is not listed as public is not: `ipaddress` alone lets through addresses that translators and clouds turn inwards.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Special purposes (IANA's registries), and what clouds answer their machines at from inside.
_INWARD_4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",
    )
)  # fmt: skip
# Only global unicast is outward. Mapped (::ffff:…), translated (64:ff9b::…), local and multicast ones stand outside of
# it; inside of it, these carry an IPv4 address that the filter would have to trust, or are nobody's.
_OUTWARD_6 = IPv6Network("2000::/3")
_INWARD_6 = tuple(
    IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)


def is_public(address: Address) -> bool:
    """Whether anyone on the Internet could reach it, so that calling it reveals nothing of ours."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _INWARD_4)
    scoped = address.scope_id is not None
    return not scoped and address in _OUTWARD_6 and not any(address in network for network in _INWARD_6)


def is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    """Whether one of the networks has it."""
    return any(address.version == network.version and address in network for network in networks)


def network(text: str) -> Network | None:
    """An address or a network in its usual form; None where it is neither."""
    try:
        return ip_network(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None

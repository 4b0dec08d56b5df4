"""The allow-list: which hosts may be called, and which inward addresses they may have."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.callbacks import addresses
from penstock.callbacks.addresses import Address, Network
from penstock.callbacks.refusal import Refused
from penstock.callbacks.target import Target, parse
from penstock.core.names import shown
from penstock.errors import BadValue


class AllowList(msgspec.Struct, frozen=True):
    """Names, names with everything below them, and networks. Nothing else is called."""

    names: frozenset[str] = frozenset()
    below: tuple[str, ...] = ()  # ".example.org"
    networks: tuple[Network, ...] = ()
    any_name: bool = False

    def check_host(self, target: Target) -> None:
        """Refused unless the host of a URL is on the list."""
        if target.address is not None:
            if not addresses.is_in(target.address, self.networks):
                raise Refused(f"{target.host} is not on the allow-list: add the address or its network")
        elif not (self.any_name or target.host in self.names or target.host.endswith(self.below or ("\0",))):
            raise Refused(f"host {target.host} is not on the allow-list: add it")

    def check_address(self, host: str, address: Address) -> None:
        """Refused unless an address that a host resolved to is public, or opened by a network of the list."""
        if not addresses.is_public(address) and not addresses.is_in(address, self.networks):
            raise Refused(f"{host} is at {address}, which is not public: add the address or its network")


def allow_list(entries: Iterable[str]) -> AllowList:
    """From `hooks.example.org`, `*.example.org`, `10.1.2.3`, `10.1.0.0/16`, `::1`, or `*` for any name."""
    names: set[str] = set()
    below: list[str] = []
    networks: list[Network] = []
    for entry in entries:
        network = addresses.network(entry)
        if network is not None:
            networks.append(network)
        elif entry.startswith("*.") and _is_name(entry[2:]):
            below.append(entry[1:].lower().removesuffix("."))
        elif entry == "*" or _is_name(entry):
            names.add(entry.lower().removesuffix("."))
        else:
            raise BadValue(
                f"allowed host {shown(entry)} is no name, address or network: give hooks.example.org, *.example.org, "
                "10.1.2.3 or 10.1.0.0/16, without scheme and port"
            )
    return AllowList(frozenset(names), tuple(below), tuple(networks), "*" in names)


def _is_name(text: str) -> bool:
    try:
        target = parse(f"http://{text}/")
    except Refused:
        return False
    return target.address is None and target.host == text.lower().removesuffix(".")

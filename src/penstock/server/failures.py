"""Who gave wrong tokens too often, and how long they must wait. Knows neither tokens nor sockets."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

# Typing errors cost nothing; after them each failure doubles the wait.
FREE_FAILURES = 10
LONGEST_WAIT = 60.0
# Without a failure for so long, a peer begins anew.
FORGET_SECONDS = 600.0
# Enough for every honest peer; an attacker with more addresses only pushes out his own.
MAX_PEERS = 10_000


class Failures:
    """Counts failures by peer, in bounded memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, tuple[int, float]] = OrderedDict()  # peer -> failures, time of the last one

    def wait(self, peer: str) -> float:
        """Seconds until this peer may try again; 0: now."""
        count, last = self._peers.get(_network(peer), (0, 0.0))
        if count < FREE_FAILURES:
            return 0.0
        pause = min(2.0 ** (count - FREE_FAILURES), LONGEST_WAIT)
        return max(0.0, last + pause - self._clock())

    def add(self, peer: str) -> None:
        """This peer failed."""
        network, now = _network(peer), self._clock()
        count, last = self._peers.pop(network, (0, now))
        self._peers[network] = (1 if now - last > FORGET_SECONDS else count + 1, now)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)

    def clear(self, peer: str) -> None:
        """This peer got in."""
        self._peers.pop(_network(peer), None)


def _network(peer: str) -> str:
    """Who stands behind an address: of IPv6 one has a whole /64."""
    if ":" not in peer:
        return peer
    try:
        address = ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"{int(address) >> 64:x}"
    return peer

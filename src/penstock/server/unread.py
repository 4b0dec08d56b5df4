"""What peers were sent and do not read: bounded for all connections of a listener together."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("penstock")

# Bytes that wait for peers that do not read. One that reads slowly has a reply or two, of some megabytes each.
MAX_UNREAD_BYTES = 128 * 1024 * 1024


class Unread:
    """Cuts off the connections that have been unread the longest when all of them hold too much."""

    def __init__(self) -> None:
        self._sizes: dict[asyncio.Transport, int] = {}  # in the order in which they stopped reading

    def add(self, transport: asyncio.Transport) -> None:
        """This connection's peer does not read what it was sent."""
        self._sizes[transport] = transport.get_write_buffer_size()
        while len(self._sizes) > 1 and sum(self._sizes.values()) > MAX_UNREAD_BYTES:
            oldest = next(iter(self._sizes))
            peer = oldest.get_extra_info("peername")
            log.warning("too many replies are not read; cutting off %s, which has stopped reading first", peer)
            self.remove(oldest)
            oldest.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """This connection's peer reads again, or is gone."""
        self._sizes.pop(transport, None)

"""Bounds the bytes that were sent to peers and not read, over all connections of a listener."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("penstock")

# Bytes that may wait for peers that do not read. A slow reader has one or two replies of some megabytes.
MAX_UNREAD_BYTES = 128 * 1024 * 1024


class Unread:
    """Closes the connections that stopped reading first when all of them hold too much."""

    def __init__(self) -> None:
        self._sizes: dict[asyncio.Transport, int] = {}  # in the order in which they stopped reading

    def add(self, transport: asyncio.Transport) -> None:
        """Note a connection whose peer has stopped reading."""
        self._sizes[transport] = transport.get_write_buffer_size()
        while len(self._sizes) > 1 and sum(self._sizes.values()) > MAX_UNREAD_BYTES:
            oldest = next(iter(self._sizes))
            peer = oldest.get_extra_info("peername")
            log.warning("too many replies are not read; cutting off %s, which has stopped reading first", peer)
            self.remove(oldest)
            oldest.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget a connection whose peer reads again or is gone."""
        self._sizes.pop(transport, None)

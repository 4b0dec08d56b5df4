"""Limits the reply bytes that peers have not read, over all connections of a listener."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("penstock")

# The most unread bytes of all peers. A slow reader has one or two replies of some megabytes.
MAX_UNREAD_BYTES = 128 * 1024 * 1024


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

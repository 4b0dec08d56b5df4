"""Server-sent events: counters every second, and changes of tasks made through this server.

A stream that is read too slowly loses task events, but not counters; an event reports how many were lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from penstock.core.results import Counts, Event
from penstock.core.task import STATUS
from penstock.server.http.http_errors import Refused
from penstock.server.http.sampler import Sample, Sampler, total
from penstock.server.http.store_access import Access

# Task events that wait for one reader.
MAX_WAITING = 1000
# After this long without an event a comment is sent, so that proxies keep the stream open.
ALIVE_SECONDS = 15.0


class Streams:
    """The open streams."""

    def __init__(self, access: Access, sampler: Sampler, limit: int) -> None:
        self._access = access
        self._sampler = sampler
        self._limit = limit
        self._readers: set[Stream] = set()

    def tap(self, events: Sequence[Event]) -> None:
        """Forward task events to the streams. Safe from any thread."""
        if self._readers:
            self._access.broker.executor.post(lambda: self._tell(events))

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            name = self._access.names.get(event.tube)
            if name is not None:  # None: another process just created the tube; the next sample has its name
                for reader in self._readers:
                    reader.offer(name, event)

    def open(self, tube: str | None) -> StreamingResponse:
        """Open a stream for one reader, of one tube or of all."""
        if len(self._readers) >= self._limit:
            raise Refused(503, f"{self._limit} event streams are open, the most this server allows: close one")
        return StreamingResponse(self._follow(Stream(tube)), media_type="text/event-stream")

    async def _follow(self, stream: Stream) -> AsyncIterator[bytes]:
        stop = self._sampler.listen(stream.counted)
        self._readers.add(stream)
        ending = asyncio.ensure_future(self._access.stopping.wait())
        ending.add_done_callback(lambda _: stream.wake.set())
        try:
            sample = await self._sampler.read()
            yield stream.counters({}, sample)
            while not self._access.stopping.is_set():
                yield await stream.next()
        finally:
            ending.cancel()
            stop()
            self._readers.discard(stream)


class Stream:
    """The events that wait for one reader."""

    def __init__(self, tube: str | None) -> None:
        self._tube = tube
        self._events: deque[bytes] = deque()
        self._known: Sample | None = None
        self._newest: Sample | None = None
        self._lost = 0
        self.wake = asyncio.Event()

    def offer(self, name: str, event: Event) -> None:
        """Add an event of a task, unless the stream is for another tube or too many wait."""
        if self._tube not in (None, name):
            return
        if len(self._events) >= MAX_WAITING:
            self._lost += 1
            return
        data = {"event": event.name, "tube": name, "id": event.record.id, "status": STATUS[event.record.state].value}
        self._events.append(_encode("task", data))
        self.wake.set()

    def counted(self, before: Sample, now: Sample) -> None:
        """Store new counters for the reader, which gets only the newest."""
        self._newest = now
        self.wake.set()

    def counters(self, before: dict[str, Counts], sample: Sample) -> bytes:
        """An event with the counters that changed, the tubes that are gone, and the time by the monotonic clock."""
        self._known, now = sample, sample.counts
        wanted = now if self._tube is None else {self._tube: now[self._tube]} if self._tube in now else {}
        changed = {name: counts for name, counts in wanted.items() if before.get(name) != counts}
        gone = [name for name in before if name not in now]
        data = {"at": round(sample.at, 3), "tubes": changed, "gone": gone, "total": total(wanted)}
        return _encode("counters", data)

    async def next(self) -> bytes:
        """Wait for events. Returns them encoded, or a comment after some seconds without any."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                await self.wake.wait()
        except TimeoutError:
            return b": alive\n\n"
        self.wake.clear()
        chunk = bytearray()
        while self._events:
            chunk += self._events.popleft()
        if self._lost:
            chunk += _encode("lost", {"events": self._lost})
            self._lost = 0
        if self._newest is not None and self._newest is not self._known:
            chunk += self.counters(self._known.counts if self._known else {}, self._newest)
        return bytes(chunk) or b": alive\n\n"


def _encode(name: str, value: Any) -> bytes:
    # JSON has no line break outside strings and none inside them, so one data line is enough.
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"

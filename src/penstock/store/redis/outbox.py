"""Moves replies from one tube to another, maybe on another node of a cluster.

The script that removes a task posts its reply to the outbox of the task's tube. Its caller then puts all entries of the
outbox into the reply tubes, in order, and removes them from the outbox. A reply tube knows the last number that it
received from each other tube, so nothing is put twice. The entries of a dead client are put by the next client that
calls the tube, or whose take finds no task anywhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
from msgspec.structs import replace

from penstock.core.chain import Link, link_entry, reply_tube
from penstock.core.ending import Ending
from penstock.core.entry import plain_entry
from penstock.core.options import Tube
from penstock.core.reply import REPLY_KIND, reply_payload
from penstock.core.results import Effects
from penstock.core.shards import public_id
from penstock.engine.port import Post
from penstock.errors import NoSuchTube, StoreCorrupt, StoreError
from penstock.store.redis import puts
from penstock.store.redis.encoding import decode, task_key
from penstock.store.redis.redis_connection import Argument, Reply
from penstock.store.redis.script_runner import TUBES, ScriptRunner
from penstock.store.redis.tubes import Tubes

log = logging.getLogger("penstock")

# The most entries that a script returns.
_PAGE = 1000
# Seconds between two scans for overdue entries: at most the scan interval of waiting calls. And after a failed scan, so
# that a node that is down does not slow down the tubes of other nodes.
_SCAN_SECONDS = 1.0
_FAILED_SECONDS = 30.0


_encode_link = msgspec.json.Encoder().encode
_decode_link = msgspec.json.Decoder(Link).decode
_decode_shard = msgspec.msgpack.Decoder(tuple[int, int, int]).decode


class OutboxEntry(msgspec.Struct, frozen=True):
    """A reply or a link of a chain that is yet to be put."""

    no: int
    tube: str
    data: bytes
    link: Link | None = None


def pack_post(post: Post) -> bytes:
    """The data of an entry: the length of the link in four bytes, the link, the payload."""
    link = b"" if post.link is None else _encode_link(post.link)
    return len(link).to_bytes(4, "big") + link + post.payload


def read_entry(stored: bytes) -> OutboxEntry:
    """Decode an entry: number and time, six bytes each, the name of its tube after its length, the data."""
    end = 13 + stored[12]
    start, name = end + 4, stored[13:end].decode()
    data = start + int.from_bytes(stored[end:start], "big")
    link = None if data == start else _decode_link(stored[start:data])
    return OutboxEntry(int.from_bytes(stored[:6], "big"), name, stored[data:], link)


class Outbox:
    """The outboxes of all tubes of one store."""

    def __init__(self, runner: ScriptRunner, tubes: Tubes) -> None:
        self._runner = runner
        self._tubes = tubes
        self._senders: set[int] = set()
        self._next_scan = 0.0

    def register(self, tube: Tube) -> None:
        """Register a tube as a sender of replies, before one of its tasks has a reply tube."""
        if tube.no not in self._senders:
            self._runner.command(TUBES, "senders", b"SADD", tube.no)
            self._senders.add(tube.no)

    def deliver(self, source: int, entries: Sequence[bytes], effects: Effects) -> None:
        """Put the entries that a script returned, and those that did not fit into its answer."""
        stuck: set[str] = set()
        with self._postponed():
            while entries:
                last = self._put(source, entries, stuck, effects)
                entries = self._read(source, last, every=True)[0] if len(entries) >= _PAGE else []

    def drain(self, source: int, effects: Effects) -> bool:
        """Put a tube's overdue entries, and the replies of a dropped tube's tasks. Returns whether there were any."""
        stuck: set[str] = set()
        last, found = 0, False
        with self._postponed():
            while True:
                entries, *dropped = self._read(source, last)
                if len(dropped) == 1:  # nothing is left of the tube
                    self._runner.command(TUBES, "senders", b"SREM", source)
                    break
                left = self._reply_for(source, *dropped) if dropped else False
                if entries:
                    last, found = self._put(source, entries, stuck, effects), True
                elif not left:
                    break
        return found

    def _reply_for(self, source: int, facts: bytes, name: bytes, pairs: list[Reply]) -> bool:
        """Post the replies of tasks of a dropped tube. Returns whether there were any tasks."""
        words: list[Argument] = []
        ids = _decode_shard(facts[6:]) if facts[6:] else (0, 1, 0)
        for id, value in zip(pairs[::2], pairs[1::2], strict=True):
            to, payload = None, b""
            with suppress(StoreCorrupt):
                record = decode(id, value)
                to = reply_tube(record.reply_to)
                payload = reply_payload(replace(record, id=public_id(id, *ids)), Ending("deleted"))
            to = None if to == name.decode() else to
            words += [task_key(id), to or "", pack_post(Post("", payload, None))]
        if words:
            self._runner.on_tag("reply_for_dropped", source, self._runner.moment(), *words)
        return bool(words)

    def deliver_overdue(self, effects: Effects) -> bool:
        """Put the overdue entries of all tubes, at most once a second. Returns whether there were any."""
        if time.monotonic() < self._next_scan:
            return False
        self._next_scan = time.monotonic() + _SCAN_SECONDS
        senders: list[bytes] = []
        with self._postponed():
            senders = self._runner.command(TUBES, "senders", b"SMEMBERS")
        return True in [self.drain(int(no), effects) for no in senders]

    @contextmanager
    def _postponed(self) -> Iterator[None]:
        """Log an error and pause scans. The call succeeds: its tasks have ended, and the outbox keeps the entries."""
        try:
            yield
        except (StoreError, NoSuchTube) as error:  # the reply tube may have been moved to another store
            self._next_scan = time.monotonic() + _FAILED_SECONDS
            log.warning("replies could not be put (%s); retrying later", error)

    def _read(self, source: int, after: int, *, every: bool = False) -> Reply:
        """The values that the script read_outbox returns."""
        moment = self._runner.moment()
        return self._runner.on_tag("read_outbox", source, moment, after, int(every), idempotent=True)

    def _put(self, source: int, entries: Sequence[bytes], stuck: set[str], effects: Effects) -> int:
        """Put a page of entries. Returns the last number. Tubes that fail are `stuck`, and skipped in later pages."""
        batches: dict[str, dict[bytes, OutboxEntry]] = {}
        for stored in entries:
            entry = read_entry(stored)
            batches.setdefault(entry.tube, {})[stored] = entry
        for name, batch in batches.items():
            if name not in stuck:
                stuck.add(name)
                with self._postponed():
                    self._receive(source, name, list(batch.values()), effects)
                    self._runner.command(source, "outbox", b"ZREM", *batch)
                    stuck.discard(name)
        return int.from_bytes(entries[-1][:6], "big")

    def _receive(self, source: int, name: str, batch: list[OutboxEntry], effects: Effects) -> Tube:
        """Put the entries into the reply tube of that name. Returns the tube."""
        while True:
            tube = self._tubes.by_name.get(name) or self._tubes.save(name, REPLY_KIND, {}, exist_ok=True)
            self._tubes.by_name[name] = tube
            try:
                stored = self._tubes.shard_for_replies(tube, source)
                words = [word for entry in batch for word in (entry.no, *self._pack(tube, entry))]
                reply = self._runner.on_tube(
                    "receive_replies", stored, source, puts.pack_facts(stored), *words, idempotent=True
                )
            except NoSuchTube:
                self._tubes.by_name.pop(name, None)  # dropped since it was found
            else:
                self._runner.read_changes(stored, reply, effects)
                return tube

    def _pack(self, tube: Tube, waiting: OutboxEntry) -> tuple[Argument, ...]:
        if waiting.link is None:
            return puts.pack_received(plain_entry(tube, waiting.data))
        moment = 0 if waiting.link.at is None else self._runner.now(tube.no)
        entry = link_entry(tube, waiting.link, waiting.data, moment)
        if entry.reply_to is not None:
            self.register(tube)
        return puts.pack_received(entry)

"""Scripts that change tasks, and replies on their way from one tube to another, maybe on another node of a cluster.

The script that ends a task puts its reply into the outbox of the task's tube. Its caller then puts all entries of the
outbox into the reply tubes, in order, and removes them; a reply tube knows the last number that it received from each
other tube, so nothing is put twice. Entries that a dead client left behind are put by the next client that calls the
tube, or that finds nothing to do elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from penstock.core.chain import MARK, Link, link_entry, next_link
from penstock.core.entry import plain_entry
from penstock.core.options import Tube
from penstock.core.reply import REPLY_KIND
from penstock.core.results import Effects
from penstock.core.task import Record
from penstock.errors import NoSuchTube, PenstockError, StoreError
from penstock.store.redis import puts
from penstock.store.redis.encoding import UNREADABLE
from penstock.store.redis.redis_connection import Argument, Reply
from penstock.store.redis.runner import TUBES, Runner, read_log
from penstock.store.redis.tubes import Tubes

log = logging.getLogger("penstock")

# Entries that a script returns at once.
_PAGE = 1000
# Between two scans for overdue entries: at most the scan interval of waiting calls; and after a scan that failed, so
# that a node that is down does not slow down the tubes of the others.
_SCAN_SECONDS = 1.0
_FAILED_SECONDS = 30.0
# The position of `removed` in an answer of a script that changes tasks; it is -1 if the script refused.
_REMOVED = 2
# The states that read_outbox in lua/replies.lua returns for a dropped tube.
_MORE, _GONE = 1, 2


class OutboxEntry(msgspec.Struct, frozen=True):
    """A reply, or a link of a chain, that was not put yet."""

    no: int
    tube: str
    data: bytes
    link: Link | None = None


def read_entry(stored: bytes) -> OutboxEntry:
    """Decode an entry, as lua/replies.lua writes it."""
    end = 13 + stored[12]
    entry = OutboxEntry(int.from_bytes(stored[:6], "big"), stored[13:end].decode(), stored[end:])
    if entry.tube != MARK:
        return entry
    data = 4 + int.from_bytes(entry.data[:4], "big")
    found = next_link(entry.data[data:], entry.data[4:data])
    return entry if found is None else OutboxEntry(entry.no, found[0].tube, found[1], found[0])


class Outbox:
    """The outboxes of all tubes of one store."""

    def __init__(self, runner: Runner, tubes: Tubes) -> None:
        self._runner = runner
        self._tubes = tubes
        self._by_name: dict[str, Tube] = {}
        self._senders: set[int] = set()
        self._next_scan = 0.0

    def forget_tubes(self) -> None:
        """Find reply tubes again: the options of one may have changed."""
        self._by_name.clear()

    def register(self, tube: Tube) -> None:
        """Register a tube whose tasks are about to have reply tubes."""
        if tube.no not in self._senders:
            self._runner.command(TUBES, "senders", b"SADD", tube.no)
            self._senders.add(tube.no)

    def deliver(self, source: int, entries: Sequence[bytes], effects: Effects, now: int | None) -> None:
        """Put the entries that a script returned, and those that did not fit into its answer."""
        stuck: set[str] = set()
        try:
            while entries:
                last = self._put(source, entries, stuck, effects, now)
                entries = self._read(source, last, now, every=True)[1] if len(entries) >= _PAGE else []
        except StoreError as error:
            self._postpone(error)

    def drain(self, source: int, effects: Effects, now: int | None) -> bool:
        """Put a tube's overdue entries, and the replies of a dropped tube's tasks. Returns whether there were any."""
        stuck: set[str] = set()
        last, found = 0, False
        try:
            while True:
                state, entries = self._read(source, last, now)
                if entries:
                    last, found = self._put(source, entries, stuck, effects, now), True
                elif state != _MORE:
                    if state == _GONE:
                        self._runner.command(TUBES, "senders", b"SREM", source)
                    break
        except StoreError as error:
            self._postpone(error)
        return found

    def deliver_overdue(self, effects: Effects, now: int | None) -> bool:
        """Put the overdue entries of all tubes, at most once a second. Returns whether there were any."""
        if time.monotonic() < self._next_scan:
            return False
        self._next_scan = time.monotonic() + _SCAN_SECONDS
        try:
            senders = cast("list[bytes]", self._runner.command(TUBES, "senders", b"SMEMBERS"))
        except StoreError as error:
            self._postpone(error)
            return False
        return True in [self.drain(int(no), effects, now) for no in senders]

    def _postpone(self, error: PenstockError) -> None:
        """Log the error and pause scans. No call fails: entries are safe in their outbox, and their tasks ended."""
        self._next_scan = time.monotonic() + _FAILED_SECONDS
        log.warning("replies could not be put (%s); retrying later", error)

    def _read(self, source: int, after: int, now: int | None, *, every: bool = False) -> tuple[int, list[bytes]]:
        moment = self._runner.moment(now)
        reply = self._runner.on_tag("read_outbox", source, moment, after, int(every), idempotent=True)
        _, state, *entries = cast("list[Reply]", reply)
        return cast(int, state), cast("list[bytes]", entries)

    def _put(self, source: int, entries: Sequence[bytes], stuck: set[str], effects: Effects, now: int | None) -> int:
        """Put a page of entries and return the last number. A tube that cannot be reached gets none of later pages."""
        found = [read_entry(stored) for stored in entries]
        by_name: dict[str, list[OutboxEntry]] = {}
        for entry in found:
            if entry.tube == MARK:  # its data is no longer that of a chain: nothing follows
                self._runner.on_tag("remove_sent_replies", source, entry.no, idempotent=True)
            else:
                by_name.setdefault(entry.tube, []).append(entry)
        for name, batch in by_name.items():
            if name not in stuck:
                try:
                    self._receive(source, name, batch, effects, now)
                    self._runner.on_tag("remove_sent_replies", source, *(entry.no for entry in batch), idempotent=True)
                except (StoreError, NoSuchTube) as error:  # the tube may have been moved to another store
                    stuck.add(name)
                    self._postpone(error)
        return found[-1].no

    def _receive(self, source: int, name: str, batch: list[OutboxEntry], effects: Effects, now: int | None) -> Tube:
        """Put the entries into the reply tube of that name, and return the tube. Other threads may forget it."""
        while True:
            tube = self._by_name.get(name) or self._tubes.save(name, REPLY_KIND, {}, exist_ok=True)
            self._by_name[name] = tube
            try:
                stored = self._tubes.shards.for_replies(tube, source)
                words = [word for entry in batch for word in (entry.no, *self._pack(tube, entry, now))]
                reply = self._runner.on_tube(
                    "receive_replies", stored, source, puts.pack_facts(stored), *words, idempotent=True, now=now
                )
            except NoSuchTube:
                self._by_name.pop(name, None)  # dropped since it was found
            else:
                read_log(stored, reply, effects)
                return tube

    def _pack(self, tube: Tube, waiting: OutboxEntry, now: int | None) -> tuple[Argument, ...]:
        if waiting.link is None:
            return puts.pack_received(plain_entry(tube, waiting.data))
        moment = 0 if waiting.link.at is None else self._runner.now(tube.no, now)
        entry = link_entry(tube, waiting.link, waiting.data, moment)
        if entry.reply_to is not None:
            self.register(tube)
        return puts.pack_received(entry)


class Steps:
    """Runs the scripts of one store that change tasks. Replies are put into their tubes before anybody is notified."""

    def __init__(self, runner: Runner, outbox: Outbox) -> None:
        self._runner = runner
        self._outbox = outbox
        #: Called with a tube where a script found bytes that penstock did not write; and how often that happened.
        self.on_unreadable: Callable[[Tube, int | None], None] | None = None
        self.unreadable = 0

    def run(
        self, name: str, tube: Tube, effects: Effects, *arguments: Argument,
        idempotent: bool = False, now: int | None = None,
    ) -> tuple[list[Record], list[Reply]]:  # fmt: skip
        """Run a script and add what it did to the effects. Returns its changes as records, and its further answer."""
        reply = self._runner.on_tube(name, tube, *arguments, idempotent=idempotent, now=now)
        return self.read(tube, reply, effects, now)

    def attempt(
        self, name: str, tube: Tube, effects: Effects, *arguments: Argument, now: int | None = None
    ) -> tuple[list[Record] | None, list[Reply]]:
        """The same for a script that may refuse: then None, and why."""
        reply = self._runner.on_tube(name, tube, *arguments, now=now)
        if reply[_REMOVED] == -1:
            return None, reply[_REMOVED + 1 :]
        return self.read(tube, reply, effects, now)

    def read(
        self, tube: Tube, reply: list[Reply], effects: Effects, now: int | None
    ) -> tuple[list[Record], list[Reply]]:
        """The same for an answer that was received already."""
        records = read_log(tube, reply, effects)
        if reply[4]:
            groups, entries = cast("tuple[list[int], list[bytes]]", tuple(cast("list[Reply]", reply[4])))
            effects.ended += [("group", tube.no, no) for no in groups]
            self._outbox.deliver(tube.no, entries, effects, now)
        if UNREADABLE in [record.reason for record in records if record.state == "!"]:
            self.repair(tube, now)
        return records, reply[5:]

    def repair(self, tube: Tube, now: int | None) -> None:
        """Repair what depended on tasks that a script buried because they could not be read."""
        if self.on_unreadable is not None:
            self.unreadable += 1
            self.on_unreadable(tube, now)

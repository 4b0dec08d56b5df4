"""Replies on their way from one tube to another, which may be on another node of a cluster.

The step that ends a task leaves its reply in the outbox of the task's tube. Whoever made the step then puts what is in
there into the reply tubes, always from the first one on, and takes it out; a reply tube knows the last number that it
got from each other tube, so nothing is put twice. What someone who died between left behind is put by the next who
calls that tube, or who finds nothing to do in any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import cast

import msgspec

from penstock.core.options import Tube
from penstock.core.reply import REPLY_KIND
from penstock.errors import NoSuchTube, PenstockError, StoreError
from penstock.store.base import Effects
from penstock.store.redis import putting
from penstock.store.redis.keys import TUBES
from penstock.store.redis.link import Reply
from penstock.store.redis.runner import Runner, read_log
from penstock.store.redis.tubes import Tubes

log = logging.getLogger("penstock")

# Letters that a script gives at once.
_PAGE = 1000
# Between two looks for what was left behind: no longer than the scan of whoever waits; and after one that failed, so
# that a node that is down does not slow down the tubes of the others.
_LOOK_SECONDS = 1.0
_FAILED_SECONDS = 30.0
# What read_outbox in lua/replies.lua returns for a dropped tube.
_MORE, _GONE = 1, 2


class Letter(msgspec.Struct, frozen=True):
    """One reply that is not put yet."""

    no: int
    tube: str
    data: bytes


def read_letter(stored: bytes) -> Letter:
    """A letter, as lua/replies.lua writes it."""
    end = 13 + stored[12]
    return Letter(int.from_bytes(stored[:6], "big"), stored[13:end].decode(), stored[end:])


class Outbox:
    """The outboxes of all tubes of one store."""

    def __init__(self, runner: Runner, tubes: Tubes) -> None:
        self._runner = runner
        self._tubes = tubes
        self._by_name: dict[str, Tube] = {}
        self._senders: set[int] = set()
        self._next_look = 0.0

    def register(self, tube: Tube) -> None:
        """Tasks of this tube are about to have reply tubes."""
        if tube.no not in self._senders:
            self._runner.on_tag("register_sender", TUBES, tube.no, again=True)
            self._senders.add(tube.no)

    def deliver(self, source: int, letters: Sequence[bytes], effects: Effects, now: int | None) -> None:
        """Put what a step found in the outbox of its tube, and what it left there for want of room in its answer."""
        stuck: set[str] = set()
        try:
            while letters:
                last = self._put(source, letters, stuck, effects, now)
                letters = self._read(source, last, now, every=True)[1] if len(letters) >= _PAGE else []
        except StoreError as error:
            self._postpone(error)

    def drain(self, source: int, effects: Effects, now: int | None) -> bool:
        """Put what was left behind in a tube, and what a dropped tube's tasks leave; whether there was anything."""
        stuck: set[str] = set()
        last, found = 0, False
        try:
            while True:
                state, letters = self._read(source, last, now)
                if letters:
                    last, found = self._put(source, letters, stuck, effects, now), True
                elif state != _MORE:
                    if state == _GONE:
                        self._runner.on_tag("unregister_sender", TUBES, source, again=True)
                    break
        except StoreError as error:
            self._postpone(error)
        return found

    def rescue(self, effects: Effects, now: int | None) -> bool:
        """Put what was left behind in any tube, looked for once a second at most; whether there was anything."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + _LOOK_SECONDS
        key = self._runner.keys.name(TUBES, "senders")
        try:
            senders = cast("list[bytes]", self._runner.servers.command(key, b"SMEMBERS", key))
        except StoreError as error:
            self._postpone(error)
            return False
        return True in [self.drain(int(no), effects, now) for no in senders]

    def _postpone(self, error: PenstockError) -> None:
        """What is in an outbox is safe there, and the task that left it has ended: nobody's call fails for it."""
        self._next_look = time.monotonic() + _FAILED_SECONDS
        log.warning("replies are put later (%s)", error)

    def _read(self, source: int, after: int, now: int | None, *, every: bool = False) -> tuple[int, list[bytes]]:
        moment = self._runner.moment(now)
        reply = cast("list[Reply]", self._runner.on_tag("read_outbox", source, moment, after, int(every), again=True))
        return cast(int, reply[1]), cast("list[bytes]", reply[2:])

    def _put(self, source: int, letters: Sequence[bytes], stuck: set[str], effects: Effects, now: int | None) -> int:
        """Put a page of letters; the number of the last. A tube that cannot be reached gets none of the later ones."""
        found = [read_letter(stored) for stored in letters]
        by_name: dict[str, list[Letter]] = {}
        for letter in found:
            by_name.setdefault(letter.tube, []).append(letter)
        for name, batch in by_name.items():
            if name not in stuck:
                try:
                    self._receive(source, name, batch, effects, now)
                    self._runner.on_tag("remove_sent_replies", source, *(letter.no for letter in batch), again=True)
                except (StoreError, NoSuchTube) as error:  # the tube may have been moved to another store
                    stuck.add(name)
                    self._postpone(error)
        return found[-1].no

    def _receive(self, source: int, name: str, batch: list[Letter], effects: Effects, now: int | None) -> None:
        words = [word for letter in batch for word in (letter.no, letter.data)]
        while True:
            tube = self._by_name.get(name) or self._tubes.save(name, REPLY_KIND, {}, exist_ok=True)
            self._by_name[name] = tube
            try:
                spec = putting.pack_plain(tube)
                stored = self._tubes.shards.for_replies(tube, source)
                reply = self._runner.on_tube("receive_replies", stored, source, spec, *words, again=True, now=now)
            except NoSuchTube:
                del self._by_name[name]  # dropped since it was found
            else:
                read_log(stored, reply, effects)
                return

"""What changed in the index is written to the vault, and only then is a call over.

Scripts mark what they change. Whoever made a change, or finds one left behind, locks the tube's row in the vault, reads
what is marked and writes it in one commit; then the marks go, and so does the data in Redis. Of callers that come
together, the first writes what all of them marked: their commits are one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import cast

import msgspec

from penstock.core.options import Tube
from penstock.errors import OutcomeUnknown, PenstockError, StoreCorrupt, StoreError
from penstock.store.pool.closing import is_closed, was_sealed
from penstock.store.pool.runner import Dirty, PoolRunner
from penstock.store.pool.server import Interrupted
from penstock.store.pool.vault import Changes, Session, Vault
from penstock.store.redis.connection import Reply
from penstock.store.redis.encoding import decode, task_id

log = logging.getLogger("penstock")

# Marks that are read in one call; each may bring data of the size of a task's.
PAGE = 200
# Between two looks for marks that somebody left behind.
_LOOK_SECONDS = 1.0
_encode = msgspec.msgpack.Encoder().encode
Before = Callable[[Session], object]
Beside = tuple[list[bytes], list[bytes], list[bytes]]
_decode = msgspec.msgpack.Decoder(Beside).decode


def read_beside(stored: bytes) -> Beside:
    """What a tube keeps beside its tasks: the words of its meta, its outbox and its inbox."""
    meta, outbox, inbox = _decode(stored)
    return meta, outbox, inbox


class Mirror:
    """Writes the index of one pool to its vault."""

    def __init__(self, runner: PoolRunner, vault: Vault) -> None:
        self._runner = runner
        self._vault = vault
        self._looked: dict[int, float] = {}
        self.reset()

    def reset(self) -> None:
        """Threads of this process wait for each other here, not at the row. In a forked child, nobody waits."""
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    def write_all(self, dirty: Dirty) -> None:
        """Write what a call changed; OutcomeUnknown when it cannot be said that all of it is written."""
        for tube, epoch in dirty.values():
            try:
                self.write(tube, epoch)
            except Interrupted as error:
                raise OutcomeUnknown(
                    f"the index of tube {tube.name} was lost during the call: it may or may not be stored; look first"
                ) from error
            except StoreError as error:
                raise OutcomeUnknown(
                    f"{self._vault.label} did not take what was done in tube {tube.name} ({error}): it is stored when "
                    "the database is back, unless Redis is lost before; look first"
                ) from error

    def write_later(self, dirty: Dirty) -> bool:
        """Write what a call changed beside what it was made for. It is marked: nobody's call fails for it.

        False: it was lost with the index, and so was never done.
        """
        try:
            self.write_all(dirty)
        except PenstockError as error:
            log.warning("it is written later (%s)", error)
            return not isinstance(error.__cause__, Interrupted)
        return True

    def write(self, tube: Tube, epoch: str, *, whole: bool = False, before: Before | None = None) -> None:
        """Write what is marked in a tube, and before that do what must be done while nobody else writes.

        `whole`: also when nothing is marked, what it keeps beside its tasks.
        """
        with self._locks[tube.no]:
            while True:
                try:
                    return self._write(tube, epoch, whole, before)
                except Interrupted:
                    if before is not None or not is_closed(self._runner, tube, epoch):
                        raise
                    if was_sealed(self._runner, self._vault, tube, epoch):
                        return None  # whoever seals a tube writes what is marked

    def _write(self, tube: Tube, epoch: str, whole: bool, before: Before | None) -> None:
        looks = _Look(self._runner, tube, epoch, whole)

        def look(session: Session) -> Iterator[Changes]:
            if before is not None:
                before(session)
            yield from looks.changes()

        if not self._vault.write(tube.no, look):
            raise self._runner.missing(tube)
        if looks.found:
            self._clear(tube, epoch, looks.version)

    def _clear(self, tube: Tube, epoch: str, version: int) -> None:
        """Take the marks back. Those that stay are written once more, which changes nothing."""
        with suppress(StoreError):
            while self._runner.in_epoch(epoch, "clear_changes", tube, version, PAGE, idempotent=True)[1]:
                pass

    def tidy(self, tube: Tube) -> None:
        """Write what somebody who died left behind, looked for once a second at most. Nobody's call fails for it."""
        if time.monotonic() - self._looked.get(tube.no, 0) < _LOOK_SECONDS:
            return
        self._looked[tube.no] = time.monotonic()
        marks = self._runner.keys.name(tube.no, "marks")
        try:
            if self._runner.servers.command(marks, b"EXISTS", marks):
                self.write(tube, str(self._runner.epoch))
        except PenstockError as error:
            log.warning("what was left behind in tube %s is written later (%s)", tube.name, error)


class _Look:
    """What is marked in a tube at one moment, read in pages."""

    def __init__(self, runner: PoolRunner, tube: Tube, epoch: str, whole: bool) -> None:
        self._runner = runner
        self._tube = tube
        self._epoch = epoch
        self._whole = whole
        self.version = 0
        self.found = False

    def changes(self) -> Iterator[Changes]:
        after, upto = 0, ""
        while True:
            with self._runner.servers.strictly():
                page = (after, upto, PAGE)
                _, version, beside, *marks = self._runner.in_epoch(
                    self._epoch, "collect_changes", self._tube, *page, idempotent=True
                )
            self.version = cast(int, version)
            if marks or self._whole:
                self.found = self.found or bool(marks)
                yield _changes(cast("list[list[bytes]]", beside), marks)
            if len(marks) < 3 * PAGE:
                return
            after, upto = cast(int, marks[-2]), str(version)


def _changes(beside: list[list[bytes]], marks: list[Reply]) -> Changes:
    changes = Changes(_encode(beside))
    for place in range(0, len(marks), 3):
        name, value = cast(bytes, marks[place]), marks[place + 2]
        if name[:1] == b"t":
            _add_task(changes, task_id(name), cast(bytes, value))
        elif name[:1] == b"o":
            _add_link(changes, name, cast(bytes, value))
        else:
            for letter, part in zip((b"g", b"e", b"c"), cast("list[bytes]", value), strict=True):
                _add_link(changes, letter + name[1:], part)
    return changes


def _add_task(changes: Changes, id: int, value: bytes) -> None:
    if not value:
        changes.gone.append(id)
        return
    try:
        data = decode(id, value).payload
    except StoreCorrupt:  # another program wrote it: kept as it is, and buried by whoever meets it
        data = b""
    changes.tasks.append((id, value[: len(value) - len(data)], data or None))


def _add_link(changes: Changes, name: bytes, value: bytes) -> None:
    if value:
        changes.links.append((name, value))
    else:
        changes.unlinked.append(name)

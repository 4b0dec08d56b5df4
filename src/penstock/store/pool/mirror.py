"""What changed in the index is written to the vault, and only then is a call over.

Scripts mark what they change. Whoever made a change, or finds one left behind, locks the tube's row in the vault, reads
what is marked and writes it in one commit; then the marks go, and so does the data in Redis. Of callers that come
together, the first writes what all of them marked: their commits are one.

A tube that leaves the pool is closed in the index, then frozen in the vault, both under the lock of its row. A closed
tube has an epoch of its own, so that no call finds it; whoever reads it knows that epoch. If it is closed and not
frozen, and nobody has the lock, a crash left it so, and the next caller opens it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from math import inf
from typing import cast

import msgspec

from penstock.core.options import Tube
from penstock.core.transfer import is_frozen
from penstock.errors import OutcomeUnknown, PenstockError, StoreCorrupt, StoreError
from penstock.store.pool.runner import Dirty, PoolRunner
from penstock.store.pool.server import Interrupted
from penstock.store.pool.vault import Changes, Session, Shelf, Vault
from penstock.store.redis.connection import Reply
from penstock.store.redis.encoding import decode, task_id
from penstock.store.redis.tubes import make_declared

log = logging.getLogger("penstock")

# Marks that are read in one call; each may bring data of the size of a task's.
PAGE = 200
# Between two looks for marks that somebody left behind.
_LOOK_SECONDS = 1.0
_encode = msgspec.msgpack.Encoder().encode
Before = Callable[[Session], object]
#: What a tube keeps beside its tasks: the words of its meta, its outbox and its inbox.
Beside = tuple[list[bytes], list[bytes], list[bytes]]
read_beside = msgspec.msgpack.Decoder(Beside).decode


class Batch(Future[None]):
    """Threads that wait for the same write; at least up to this version of the tube."""

    version = 0.0


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
        self._lock = threading.Lock()
        self._joining: dict[tuple[int, str], Batch] = {}

    def write_all(self, dirty: Dirty) -> None:
        """Write what a call changed; OutcomeUnknown if it is not certain that all of it is written."""
        for tube, epoch, version in dirty.values():
            try:
                self.write(tube, epoch, version)
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
        """Write what a call changed in passing. It is marked, so no call fails for it.

        False if it was lost with the index, and so was never done.
        """
        try:
            self.write_all(dirty)
        except PenstockError as error:
            log.warning("changes of the pool not written to its database yet (%s); the next call writes them", error)
            return not isinstance(error.__cause__, Interrupted)
        return True

    def write(
        self, tube: Tube, epoch: str, version: float = inf, *, whole: bool = False, before: Before | None = None
    ) -> None:
        """Write what is marked in a tube, at least up to a version. `before` runs first, while nobody else writes.

        `whole`: write what the tube keeps beside its tasks even if nothing is marked.
        """
        if whole or before is not None:
            with self._locks[tube.no]:
                last = self._write_open(tube, epoch, version, whole, before)
            return self._clear(tube, epoch, last)
        while True:
            with self._lock:
                joined = self._joining.get((tube.no, epoch))
                batch = self._joining.setdefault((tube.no, epoch), Batch())
                batch.version = max(batch.version, version)
            try:
                return self._lead(tube, epoch, batch) if joined is None else batch.result()
            except CancelledError:
                continue  # the thread that was to write was interrupted

    def _lead(self, tube: Tube, epoch: str, batch: Batch) -> None:
        """Write for all threads that have joined the batch when the write before it is over."""
        place = tube.no, epoch
        try:
            with self._locks[tube.no]:
                with self._lock:
                    del self._joining[place]  # what others mark from now on is not awaited here
                last = self._write_open(tube, epoch, batch.version)
            batch.set_result(None)
        except Exception as error:
            batch.set_exception(error)
            raise
        finally:
            if not batch.done():
                with self._lock:
                    if self._joining.get(place) is batch:
                        del self._joining[place]
                batch.cancel()
        self._clear(tube, epoch, last)

    def _write_open(
        self, tube: Tube, epoch: str, version: float, whole: bool = False, before: Before | None = None
    ) -> int:
        """Write, once the tube is open, if it was closed and is not frozen. Returns as `_write`."""
        while True:
            try:
                return self._write(tube, epoch, version, whole, before)
            except Interrupted:
                if before is not None or not is_closed(self._runner, tube, epoch):
                    raise
                if was_sealed(self._runner, self._vault, tube, epoch):
                    return 0  # the process that freezes a tube writes what is marked

    def _write(self, tube: Tube, epoch: str, version: float, whole: bool, before: Before | None) -> int:
        """Write. Returns up to which version marks were written, 0 if none were."""
        last = 0

        def look(session: Session, beside: bytes | None) -> Iterator[Changes]:
            """What is marked in the tube at one moment, read in pages."""
            nonlocal last
            if before is not None:
                before(session)
            after, upto = 0 if whole else _written(beside, epoch), ""
            while after < version:
                with self._runner.servers.strictly():
                    reply = self._runner.in_epoch(epoch, "collect_changes", tube, after, upto, PAGE, idempotent=True)
                found, marks = cast(int, reply[1]), reply[3:]
                if marks or whole:
                    last = found if marks else last
                    # That of the first page: it has the version up to which marks are read.
                    yield _changes(None if upto else cast("list[list[bytes]]", reply[2]), marks)
                if len(marks) < 3 * PAGE:
                    return
                after, upto = cast(int, marks[-2]), str(found)

        if not self._vault.write(tube.no, look):
            raise self._runner.missing(tube)
        return last

    def _clear(self, tube: Tube, epoch: str, version: int) -> None:
        """Remove the marks up to a version. Those that stay are removed after another write."""
        with suppress(StoreError):
            while version and self._runner.in_epoch(epoch, "clear_changes", tube, version, PAGE, idempotent=True)[1]:
                pass

    def tidy(self, tube: Tube) -> None:
        """Write what a process that died left behind; looks at most once a second. No call fails for it."""
        if time.monotonic() - self._looked.get(tube.no, 0) < _LOOK_SECONDS:
            return
        self._looked[tube.no] = time.monotonic()
        marks = self._runner.keys.name(tube.no, "marks")
        try:
            if self._runner.servers.command(marks, b"EXISTS", marks):
                self.write(tube, str(self._runner.epoch), whole=True)
        except PenstockError as error:
            log.warning("changes left behind in tube %s not written yet (%s); retrying", tube.name, error)


def _written(beside: bytes | None, epoch: str) -> int:
    """Up to which version the vault has what was marked in this epoch."""
    if beside is None:
        return 0
    meta = read_beside(beside)[0]
    found = dict(zip(meta[::2], meta[1::2], strict=True))
    return int(found.get(b"version", 0)) if found.get(b"epoch") == epoch.encode() else 0


def _changes(beside: list[list[bytes]] | None, marks: list[Reply]) -> Changes:
    changes = Changes(None if beside is None else _encode(beside))
    for place in range(0, len(marks), 3):
        name, value = cast(bytes, marks[place]), marks[place + 2]
        if name[:1] == b"t":
            _add_task(changes, task_id(name), cast(bytes, value))
            continue
        links = [(name, cast(bytes, value))] if name[:1] in b"ox" else _group_links(name, cast("list[bytes]", value))
        changes.links += [link for link in links if link[1]]
        changes.unlinked += [link for link, part in links if not part]
    return changes


def _group_links(name: bytes, parts: list[bytes]) -> list[tuple[bytes, bytes]]:
    return [(letter + name[1:], part) for letter, part in zip((b"g", b"e", b"c"), parts, strict=True)]


def _add_task(changes: Changes, id: int, value: bytes) -> None:
    if not value:
        changes.gone.append(id)
        return
    try:
        data = decode(id, value).payload
    except StoreCorrupt:  # another program wrote it: kept as it is, and buried by the next that meets it
        data = b""
    changes.tasks.append((id, value[: len(value) - len(data)], data or None))


def closed(epoch: int | str) -> str:
    """The epoch of a tube that was closed in this one."""
    return f"{epoch}>"


def epoch_of(tube: Tube, epoch: int) -> str:
    """The epoch of a tube that is whole in this one."""
    return closed(epoch) if is_frozen(tube) else str(epoch)


def is_closed(runner: PoolRunner, tube: Tube, epoch: int | str) -> bool:
    """Whether it was closed in that epoch."""
    meta = runner.keys.name(tube.no, "meta")
    return runner.servers.command(meta, b"HGET", meta, b"epoch") == closed(epoch).encode()


def was_sealed(runner: PoolRunner, vault: Vault, tube: Tube, epoch: int | str) -> bool:
    """Whether a closed tube was frozen, once the process that closed it has ended; if not, open it again."""

    def open_again(shelf: Shelf) -> None:
        if not is_frozen_in(shelf):
            with runner.servers.strictly():
                runner.on_tag("reopen_index", shelf.no, closed(epoch), epoch, idempotent=True)

    shelf = vault.settle_down(tube.no, open_again)
    return shelf is None or is_frozen_in(shelf)


def is_frozen_in(shelf: Shelf) -> bool:
    """Whether the vault says that a tube was moved away."""
    return is_frozen(make_declared(shelf.no, shelf.declared))

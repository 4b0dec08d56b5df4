"""The index in Redis and the vault behind it: writing changes to the vault, and rebuilding a lost index from it.

Scripts mark what they change, and a call returns once the vault has these changes. The process that made a change, or
that finds one left behind, reads everything that is marked and writes it to the vault in one commit, which does nothing
if the vault has a newer version. Then it removes the marks, and the tasks' data from Redis. Concurrent callers share
one commit.

Every rebuild begins an epoch. A process that finds the index lost raises the epoch in the vault. Only one process can;
the others wait. A tube that is being loaded is closed: scripts that know another epoch do nothing in it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import inf
from typing import NamedTuple

import msgspec

from penstock.core.options import Tube
from penstock.errors import BadValue, OutcomeUnknown, PenstockError, StoreCorrupt, StoreError
from penstock.store.pool.epoch_runner import OTHER_EPOCH, Change, EpochRunner, Interrupted, WatchedServer, list_of
from penstock.store.pool.vault import Changes, Shelf, Vault, epoch_of, vault_version
from penstock.store.redis.encoding import payload_place, task_id, task_key
from penstock.store.redis.redis_connection import Argument, Reply
from penstock.store.redis.script_runner import SESSIONS, TUBES
from penstock.store.redis.tubes import make_declared

log = logging.getLogger("penstock")

# Marks that one call reads; each may include the data of a task.
PAGE = 200
# Seconds between two checks for marks that a dead process left behind.
_LOOK_SECONDS = 1.0
_read_head = msgspec.msgpack.Decoder(list[int]).decode
# Called with the number of tasks loaded so far and the total.
Progress = Callable[[int, int], object]
# A process that builds the index announces it with every page. If it dies, the others wait this long.
_BUILDING_MS = 5000
_POLL_SECONDS = 0.02
_SESSION_KEYS = ("total", "sessions", "ids", "members", "ends")
# Session numbers of an epoch are higher than those of all earlier epochs.
_SESSIONS_OF_EPOCH = 2**32
# States of a group that has not ended.
_UNENDED = b"osx"
# How often a tube that keeps changing is compared before it is left to the next check.
_LOOKS = 5
# What reset_index returns for a tube whose outbox may have entries.
_HAS_POSTED = 2


class Page(NamedTuple):
    """What read_changes of pool.lua returns: the last version, the version that is written, the version to continue
    after if there are more changes; what the tube stores besides its tasks, then names and values. Without values,
    there is nothing to write."""

    last: int
    written: int
    more: int
    values: list[bytes]


class Mirror:
    """Writes the index of one pool to its vault."""

    def __init__(self, runner: EpochRunner, vault: Vault) -> None:
        self._runner = runner
        self._vault = vault
        self._looked: dict[int, float] = {}
        #: Replaces the index of an epoch, after the vault has lost changes.
        self.replace: Callable[[int], object] = lambda epoch: None

    def write_all(self, changes: Iterable[Change]) -> None:
        """Write what a call changed. Raises OutcomeUnknown unless all of it is certainly written."""
        for tube, epoch, version, client, told in changes:
            if told == b"":  # another client has written it
                continue
            try:
                self.write(tube, epoch, version, client=client, told=told)
            except Interrupted as error:
                raise OutcomeUnknown(
                    f"the index of tube {tube.name} was lost during the call, which may or may not be stored: "
                    "check before retrying"
                ) from error
            except StoreError as error:
                raise OutcomeUnknown(
                    f"{self._vault.label} could not store changes of tube {tube.name} ({error}): they are stored when "
                    "the database is back, unless Redis is lost first; check before retrying"
                ) from error

    def write_later(self, changes: Iterable[Change]) -> bool:
        """Write side effects of a call, which does not fail if they cannot be written now: they stay marked.

        Returns False if the changes were lost with the index, as if they had never been made.
        """
        try:
            self.write_all(changes)
        except PenstockError as error:
            log.warning("changes of the pool not written to its database yet (%s); the next call writes them", error)
            return not isinstance(error.__cause__, Interrupted)
        return True

    def write(
        self, tube: Tube, epoch: str, version: float = inf, *, whole: bool = False, client: str = "",
        told: bytes | None = None,
    ) -> None:  # fmt: skip
        """Write what is marked in a tube, at least up to `version`, unless another client does it.

        `whole`: write what the tube stores besides its tasks even if nothing is marked. `client`, `told`: see Change.
        """
        client = client or self._runner.new_client()
        pages = self._collect(tube, epoch, client, version, whole, told)
        if not pages:
            return
        if len(pages[0].values) > 1 or whole:
            self._write(tube, epoch, pages)
        with suppress(StoreError):  # a later write removes the marks that remain
            while self._on_marks("clear_changes", tube, epoch, pages[-1].last, PAGE, client)[0] == 1:
                pass

    def _write(self, tube: Tube, epoch: str, pages: list[Page]) -> None:
        """Write pages to the vault in one commit. Raises Interrupted if the index is lost."""
        known, last = (vault_version(int(epoch), each) if each else 0 for each in (pages[0].written, pages[-1].last))
        changes = [_changes(page.values) for page in pages]
        stored = self._vault.write(tube.no, pages[-1].values[0], changes, known=known, version=last)
        if stored is None:
            raise self._runner.missing(tube)
        if stored < known:
            log.warning("%s lacks changes that it had stored; rebuilding the index from what it has", self._vault.label)
            self.replace(int(epoch))
        if stored < last or epoch_of(stored) > int(epoch):
            raise Interrupted

    def _collect(
        self, tube: Tube, epoch: str, client: str, version: float, whole: bool, told: bytes | None
    ) -> list[Page]:
        """Wait for the client's turn, and read everything that is marked, in pages; `told`: what its list had. Returns
        no page if another client has written `version` meanwhile."""
        called, pages = list_of(self._runner.keys, tube, client), list[Page]()
        while told != b"":
            if told is None:
                words = client, inf if pages or whole else version, pages[-1].more if pages else 0
                reply = self._on_marks("collect_changes", tube, epoch, *words, int(whole and not pages))
                told = reply[1] if len(reply) > 1 else None
                if told is None:  # another client writes
                    pages, told = [], self._runner.servers.wait_at(called)
                continue
            page, told = _read_page(told), None
            if pages and page.written > pages[0].written:
                pages = []  # the turn has ended in between: others may have written newer changes
            else:
                pages.append(page)
                if not page.more:
                    return pages
        return []

    def _on_marks(self, name: str, tube: Tube, epoch: str, *words: Argument) -> list[Reply]:
        """Run a script that also works on a tube that was moved away; raises Interrupted if the epoch has ended."""
        reply: list[Reply] = self._runner.on_tag(name, tube.no, epoch, *words, idempotent=True)
        if reply[0] == OTHER_EPOCH:
            raise Interrupted
        return reply

    def tidy(self, tube: Tube) -> None:
        """Write what a dead process left marked; checks at most once a second, and never raises a PenstockError."""
        if time.monotonic() - self._looked.get(tube.no, 0) < _LOOK_SECONDS:
            return
        self._looked[tube.no] = time.monotonic()
        marks = self._runner.keys.name(tube.no, "marks")
        try:
            if self._runner.servers.command(marks, b"EXISTS", marks):
                self.write(tube, str(self._runner.servers.epoch))
        except PenstockError as error:
            log.warning("changes left behind in tube %s not written yet (%s); retrying", tube.name, error)


def _read_page(stored: bytes) -> Page:
    start = 4 + int.from_bytes(stored[:4], "big")
    last, written, more, *lengths = _read_head(stored[4:start])
    values: list[bytes] = []
    for length in lengths:
        values.append(stored[start : start + length])
        start += length
    return Page(last, written, more, values)


def _changes(values: list[bytes]) -> Changes:
    changes = Changes()
    for name, value in zip(values[1::2], values[2::2], strict=True):
        if name[:1] == b"t":
            _add_task(changes, task_id(name), value)
        elif value:
            changes.links.append((name, value))
        else:
            changes.unlinked.append(name)
    return changes


def _add_task(changes: Changes, id: int, value: bytes) -> None:
    if not value:
        changes.gone.append(id)
        return
    try:
        place = payload_place(value)
    except StoreCorrupt:  # not written by penstock: store it unchanged; the next call that reads it buries it
        place = len(value)
    changes.tasks.append((id, value[:place], value[place:] or None))


class Index:
    """The index of one pool."""

    def __init__(self, runner: EpochRunner, vault: Vault, schema: int) -> None:
        self._runner = runner
        self._servers: WatchedServer = runner.servers
        self._vault = vault
        self._schema = schema
        self._store = runner.keys.name(TUBES, "store")
        self._building = runner.keys.name(TUBES, "building")
        #: Whether this process has built the index.
        self.built = False
        self.reset()

    def reset(self) -> None:
        """Create the lock of the thread that builds the index; in a forked child, no thread does."""
        self._lock = threading.RLock()

    def is_whole(self) -> bool:
        """Return whether the index is complete and of the epoch that this process knows."""
        found = self._servers.send(self._store, b"HGET", self._store, b"epoch")
        return bool(found == str(self._servers.epoch).encode())

    def ensure(self, progress: Progress | None = None) -> None:
        """Return once the index is complete. Builds it, or waits for the process that does."""
        with self._lock, self._servers.trusted():
            while True:
                # Read the epoch first: a process that raised it has announced itself before, or has finished building.
                epoch, run = self._vault.epoch(), self._servers.read_run_id()
                building = self._servers.send(self._building, b"EXISTS", self._building)
                words = (b"HMGET", self._store, b"epoch", b"run", b"schema")
                found = self._servers.send(self._store, *words)
                if epoch and found == [str(epoch).encode(), run.encode(), str(self._schema).encode()]:
                    self._servers.epoch, self._servers.run_id = epoch, run
                    return
                if building:
                    time.sleep(_POLL_SECONDS)  # another process builds the index, without a notification at the end
                else:
                    self._build(epoch, run, progress)

    def restore(self, no: int) -> bool:
        """Make sure that a tube's index is complete. Returns False if there is no such tube."""
        self.ensure()
        shelf, epoch = self._vault.tube(no), self._servers.epoch
        if shelf is None:
            return False
        if shelf.beside is None:
            self._runner.on_tag("begin_index", no, epoch, idempotent=True)
        meta = self._runner.keys.name(no, "meta")
        found = self._servers.send(meta, b"HMGET", meta, b"epoch", b"last", b"frozen")
        if found[0] != str(epoch).encode() or not any(found[1:]):  # a drop was interrupted
            log.warning("the index of tube number %d is lost; rebuilding the whole index", no)
            self.replace(epoch)
        return True

    def replace(self, epoch: int, progress: Progress | None = None) -> None:
        """Rebuild the index of that epoch, unless another process does."""
        with self._lock, self._servers.trusted():
            self._build(epoch, self._servers.read_run_id(), progress)
        self.ensure(progress)

    def _build(self, known: int, run: str, progress: Progress | None = None) -> None:
        """Build the index in the next epoch, unless another process does. It may be lost again meanwhile."""
        self._announce()  # before raising the epoch: else another process would raise it again
        if not self._vault.raise_epoch(known):
            return
        epoch, started, done = known + 1, time.monotonic(), 0
        total = self._vault.count() if progress else 0
        tubes: list[Tube] = []
        groups: defaultdict[int, list[int]] = defaultdict(list)
        try:
            with self._servers.strictly():
                self._begin(epoch)
                for shelf in self._vault.tubes():
                    tube = self._load_shelf(shelf, epoch)
                    for loaded in self._load_tasks(tube, epoch, groups[tube.no]) if tube else ():
                        done += loaded
                        if progress:
                            progress(done, total)
                    tubes += [tube] if tube else []
                for tube in tubes:
                    self._runner.in_epoch(f"{epoch}~", "open_index", tube, epoch, *groups[tube.no])
        except Interrupted:
            return
        self._write(b"HSET", self._store, b"epoch", epoch, b"run", run, b"pool", 1)
        self._write(b"UNLINK", self._building)
        if known and progress is None:  # else it is the first build, or a user asked for it
            log.warning("rebuilt the index of %d tubes in %.1f s", len(tubes), time.monotonic() - started)
        self.built = True

    def _begin(self, epoch: int) -> None:
        """Mark the index as incomplete, and remove all sessions."""
        opened = self._runner.on_tag("open_store", TUBES, self._vault.name, self._schema, idempotent=True)
        if opened[0].decode() != self._vault.name:
            raise BadValue(
                f"prefix {self._runner.keys.prefix} of {self._servers.label} belongs to another store: give the URL "
                "another prefix"
            )
        self._write(b"HSET", self._store, b"schema", self._schema)
        self._write(b"HDEL", self._store, b"epoch")
        self._write(b"UNLINK", *(self._runner.keys.name(SESSIONS, part) for part in _SESSION_KEYS))
        total = self._runner.keys.name(SESSIONS, "total")
        self._write(b"SET", total, (epoch - 1) * _SESSIONS_OF_EPOCH)

    def _load_shelf(self, shelf: Shelf, epoch: int) -> Tube | None:
        """Close a tube and load what it stores besides its tasks. Returns None if it was dropped in the meantime."""
        self._wipe(shelf.no, epoch)
        settled = self._vault.begin_epoch(shelf.no, epoch)  # no write of the lost epoch follows
        if settled is None:
            return None
        tube = make_declared(settled.no, settled.declared)
        if settled.beside is not None and self._wipe(shelf.no, epoch, settled.beside) == _HAS_POSTED:
            self._runner.command(TUBES, "senders", b"SADD", shelf.no)
        return tube

    def _load_tasks(self, tube: Tube, epoch: int, groups: list[int]) -> Iterator[int]:
        """Load a tube's tasks, outcomes and groups. Yields the number of tasks per page; collects the live groups."""
        for links in self._vault.links(tube.no, PAGE):
            self._announce()
            groups += [task_id(name) for name, value in links if name[:1] == b"g" and value[:1] in _UNENDED]
            words: list[Argument] = [word for link in links for word in link]
            self._runner.in_epoch(f"{epoch}~", "import", tube, "", 0, len(words), *words)
        for tasks in self._vault.tasks(tube.no, PAGE):
            self._announce()
            words = [word for id, record in tasks for word in (task_key(id), record)]
            self._runner.in_epoch(f"{epoch}~", "import", tube, "", 0, 0, *words)
            yield len(tasks)

    def _wipe(self, no: int, epoch: int, *beside: bytes) -> int:
        """Empty and close the index of a tube. Returns what reset_index returns."""
        done: int = self._runner.on_tag("reset_index", no, epoch, *beside, idempotent=True)
        if not done:
            raise Interrupted
        return done

    def _announce(self) -> None:
        self._write(b"SET", self._building, b"1", b"PX", _BUILDING_MS)

    def _write(self, command: bytes, key: bytes, *words: bytes | str | int) -> None:
        """Send an idempotent command."""
        self._servers.send(key, command, key, *words)


def differences(runner: EpochRunner, vault: Vault, tube: Tube) -> tuple[list[int], list[int]]:
    """The ids of tasks that only the index has, and of those that only the vault has, without marked ones: these are
    yet to be written to the vault. Both are empty if the tube keeps changing."""
    meta = runner.keys.name(tube.no, "meta")
    for _ in range(_LOOKS):
        version = runner.servers.command(meta, b"HGET", meta, b"version")
        marked = {task_id(name) for name, _ in runner.scan(tube, "marks") if name[:1] == b"t"}
        index = set(runner.all_ids(tube))
        stored = {id for page in vault.tasks(tube.no, PAGE) for id, _ in page}
        if index == stored or version == runner.servers.command(meta, b"HGET", meta, b"version"):
            return sorted(index - stored - marked), sorted(stored - index - marked)
    return [], []

"""The index in Redis: whether it is whole, how it is rebuilt from the vault, and where the two differ.

Every rebuild begins an epoch. A process that finds the index lost raises the epoch in the vault, and only one can; the
others wait. A tube that is being loaded is closed: scripts that know another epoch do nothing in it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from penstock.core.options import Tube
from penstock.core.results import Finding
from penstock.core.transfer import is_frozen
from penstock.errors import BadValue
from penstock.store.pool.mirror import PAGE, epoch_of, is_closed, is_frozen_in, read_beside, was_sealed
from penstock.store.pool.runner import PoolRunner
from penstock.store.pool.server import Interrupted, WatchedServer
from penstock.store.pool.vault import Shelf, Vault
from penstock.store.redis.encoding import task_id, task_key
from penstock.store.redis.queries import all_ids, scan
from penstock.store.redis.runner import SESSIONS, TUBES
from penstock.store.redis.tubes import make_declared

log = logging.getLogger("penstock")

# Gets the number of tasks that are loaded, and of all.
Progress = Callable[[int, int], object]
# A process that builds says so again with every page; one that died is waited for no longer than this.
_BUILDING_MS = 5000
_POLL_SECONDS = 0.02
_SESSION_KEYS = ("total", "sessions", "ids", "members", "lapses", "ends", "ended")
# Numbers of sessions of an epoch are above those of all before.
_SESSIONS_OF_EPOCH = 2**32
# States of a group that is not over.
_UNENDED = b"osx"
# Looks at a tube that changes meanwhile, before it is left to the next check.
_LOOKS = 5
# Words of one command.
_WORDS = 1000


class Index:
    """The index of one pool."""

    def __init__(self, runner: PoolRunner, vault: Vault, schema: int) -> None:
        self._runner = runner
        self._servers: WatchedServer = runner.servers
        self._vault = vault
        self._schema = schema
        self._store = runner.keys.name(TUBES, "store")
        self._building = runner.keys.name(TUBES, "building")
        self.reset()

    def reset(self) -> None:
        """In a forked child nobody builds."""
        self._lock = threading.RLock()

    def is_whole(self) -> bool:
        """Whether it is of the epoch that this process knows."""
        found = self._servers.command(self._store, b"HGET", self._store, b"epoch")
        return found == str(self._runner.epoch).encode()

    def is_open(self, tube: Tube, epoch: int) -> bool:
        """Whether a tube is whole, in that epoch."""
        meta = self._runner.keys.name(tube.no, "meta")
        return self._servers.command(meta, b"HGET", meta, b"epoch") == epoch_of(tube, epoch).encode()

    def ensure(self, progress: Progress | None = None) -> None:
        """Return once it is whole: build it, or wait for the process that does."""
        with self._lock, self._servers.trusted():
            while True:
                # In this order: the process that raised this epoch is seen building, or else has built.
                epoch, run = self._vault.epoch(), self._servers.run_now()
                building = self._servers.command(self._building, b"EXISTS", self._building)
                words = (b"HMGET", self._store, b"epoch", b"run", b"schema")
                found = cast("list[bytes | None]", self._servers.command(self._store, *words))
                if epoch and found == [str(epoch).encode(), run.encode(), str(self._schema).encode()]:
                    self._runner.epoch, self._servers.run_id = epoch, run
                    return
                if building:
                    time.sleep(_POLL_SECONDS)  # another process builds, and only its result can be seen
                else:
                    self._build(epoch, run, progress)

    def rebuild(self, progress: Progress | None = None) -> None:
        """Build it again although it may be whole."""
        with self._lock, self._servers.trusted():
            while not self._build(self._vault.epoch(), self._servers.run_now(), progress):
                time.sleep(_POLL_SECONDS)
        self.ensure()

    def restore(self, tube: Tube) -> bool:
        """Make a tube's index whole; False if there is no such tube, or it was moved away meanwhile."""
        self.ensure()
        shelf, epoch = self._vault.tube(tube.no), self._runner.epoch
        if shelf is None or is_frozen_in(shelf) != is_frozen(tube):
            return False
        if shelf.beside is None:
            self._runner.on_tag("begin_index", tube.no, epoch, idempotent=True)
        if not is_frozen(tube) and is_closed(self._runner, tube, epoch):
            return not was_sealed(self._runner, self._vault, tube, epoch)
        if not self.is_open(tube, epoch):  # it was lost alone: by another program, or a drop that was cut off
            log.warning("the index of tube %s is lost; rebuilding the whole index", tube.name)
            with self._lock, self._servers.trusted():
                self._build(epoch, self._servers.run_now())
            self.ensure()
        return True

    def _build(self, known: int, run: str, progress: Progress | None = None) -> bool:
        """Build it in the next epoch; False if another process does, or it was lost again meanwhile."""
        self._say_building()  # before the epoch is raised, else another process would begin the next one
        if not self._vault.raise_epoch(known):
            return False
        epoch, started, done = known + 1, time.monotonic(), 0
        total = self._vault.count() if progress else 0
        tubes: list[Tube] = []
        try:
            self._begin(epoch)
            for shelf in self._vault.tubes():
                tube = self._load_shelf(shelf, epoch)
                for loaded in self._load_tasks(tube, epoch) if tube else ():
                    done += loaded
                    if progress:
                        progress(done, total)
                tubes += [tube] if tube else []
            for tube in tubes:
                self._runner.in_epoch(f"{epoch}~", "open_index", tube, epoch_of(tube, epoch))
        except Interrupted:
            return False
        self._write(b"HSET", self._store, b"epoch", epoch, b"run", run, b"pool", 1)
        self._write(b"UNLINK", self._building)
        if known and progress is None:  # else somebody asked for it
            log.warning("rebuilt the index of %d tubes in %.1f s", len(tubes), time.monotonic() - started)
        return True

    def _begin(self, epoch: int) -> None:
        """Mark it as not whole, and remove all sessions."""
        found = cast(
            "list[bytes]", self._runner.on_tag("open_store", TUBES, self._vault.name, self._schema, idempotent=True)
        )
        if found[0].decode() != self._vault.name:
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
        """Close a tube and load what it keeps beside its tasks; None if it was dropped meanwhile."""
        self._wipe(shelf.no, epoch)
        settled = self._vault.settle_down(shelf.no)  # what was read from the lost index is written by now
        if settled is None:
            return None
        tube = make_declared(settled.no, settled.declared)
        if settled.beside is not None:
            self._load_beside(tube, settled.beside, epoch)
        return tube

    def _load_tasks(self, tube: Tube, epoch: int) -> Iterator[int]:
        """Load its links and its tasks. Yields the number of tasks, page by page."""
        groups: list[int] = []
        for links in self._vault.links(tube.no, PAGE):
            self._say_building()
            groups += [task_id(name) for name, value in links if name[:1] == b"g" and value[:1] in _UNENDED]
            self._runner.in_epoch(f"{epoch}~", "load_relations", tube, *(word for link in links for word in link))
        for tasks in self._vault.tasks(tube.no, PAGE):
            self._say_building()
            words = [word for id, record in tasks for word in (task_key(id), record)]
            self._runner.in_epoch(f"{epoch}~", "load_tasks", tube, *words)
            yield len(tasks)
        for no in groups:
            self._runner.in_epoch(f"{epoch}~", "repair_group", tube, no)

    def _wipe(self, no: int, epoch: int, *meta: bytes) -> None:
        if not self._runner.on_tag("reset_index", no, epoch, *meta, idempotent=True):
            raise Interrupted

    def _load_beside(self, tube: Tube, stored: bytes, epoch: int) -> None:
        meta, outbox, inbox = read_beside(stored)
        self._wipe(tube.no, epoch, *meta)
        letters = [word for place in range(0, len(outbox), 2) for word in (outbox[place + 1], outbox[place])]
        for command, part, words in ((b"ZADD", "outbox", letters), (b"HSET", "inbox", inbox)):
            for start in range(0, len(words), _WORDS):
                self._write(command, self._runner.keys.name(tube.no, part), *words[start : start + _WORDS])
        if b"posted" in meta[::2]:
            self._runner.command(TUBES, "senders", b"SADD", tube.no)

    def _say_building(self) -> None:
        self._write(b"SET", self._building, b"1", b"PX", _BUILDING_MS)

    def _write(self, command: bytes, key: bytes, *words: bytes | str | int) -> None:
        """A command that may be sent twice."""
        self._servers.command(key, command, key, *words)


class Differences(msgspec.Struct, frozen=True):
    """The tasks that only the index has, and those that only the vault has."""

    tube: Tube
    strange: list[int]
    missing: list[int]

    def findings(self) -> Iterator[Finding]:
        """What is reported of them."""
        for id in self.strange:
            yield Finding(self.tube.name, id, "is in Redis, but not in the database of the pool", "repair removes it")
        for id in self.missing:
            what = "is in the database of the pool, but not in Redis"
            yield Finding(self.tube.name, id, what, "repair rebuilds the index")


def differences(runner: PoolRunner, vault: Vault, tube: Tube) -> Differences:
    """What differs while nothing changes, except what is marked: that is on its way to the vault."""
    for _ in range(_LOOKS):
        before = _version(runner, tube)
        marked = {task_id(name) for name, _ in scan(runner, tube, "marks") if name[:1] == b"t"}
        index = all_ids(runner, tube)
        stored = {id for page in vault.tasks(tube.no, PAGE) for id, _ in page}
        if index == stored or before == _version(runner, tube):
            return Differences(tube, sorted(index - stored - marked), sorted(stored - index - marked))
    return Differences(tube, [], [])


def _version(runner: PoolRunner, tube: Tube) -> bytes | None:
    meta = runner.keys.name(tube.no, "meta")
    return cast("bytes | None", runner.servers.command(meta, b"HGET", meta, b"version"))

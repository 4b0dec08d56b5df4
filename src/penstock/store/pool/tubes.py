"""Tubes by name, as the vault has them, and replies between them; Redis only knows the numbers of tubes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.kind import Kind
from penstock.core.options import Tube, changed_options, encode_given, make_tube
from penstock.core.refusals import tube_exists
from penstock.core.results import Effects, Finding
from penstock.core.transfer import importing
from penstock.store.pool.index import Mirror
from penstock.store.pool.runner import PoolRunner
from penstock.store.pool.vault import Shelf, Vault
from penstock.store.redis.outbox import Outbox, OutboxEntry
from penstock.store.redis.runner import Runner
from penstock.store.redis.tubes import Declared, Shards, Tubes, encode_declared, make_declared


class Whole(Shards):
    """No tube is split: there is one server."""

    def of(self, tube: Tube) -> Sequence[Tube]:
        return (tube,)

    def for_replies(self, tube: Tube, source: int) -> Tube:
        return tube


class PoolTubes(Tubes):
    """The tubes of one pool. A new one has no index yet; the first call on it creates one."""

    def __init__(self, runner: Runner, shards: Shards, vault: Vault) -> None:
        super().__init__(runner, shards)
        self._vault = vault

    def lost(self) -> list[Finding]:
        """None: the database knows every tube, and an index without one of its keys is rebuilt."""
        return []

    def save(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        self.find(name)  # NoSuchTube while it is moved
        shelf, made = self._vault.add_tube(name, declaration(name, kind, given))
        if not made and not exist_ok:
            raise tube_exists(name)
        if made:
            self.note_altered()
        return make_declared(shelf.no, shelf.declared)

    def alter(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        given: dict[str, object] = {}

        def declare(shelf: Shelf) -> tuple[str, bytes]:
            nonlocal given
            given = changed_options(make_declared(shelf.no, shelf.declared).given, changes)
            return tube.name, declaration(tube.name, tube.kind, given)

        if not (self._lives(tube) and self._vault.rename(tube.no, declare)):
            raise self._runner.missing(tube)
        self.note_altered()
        return make_tube(tube.no, tube.name, tube.kind, given)

    def _lookup(self, name: str) -> Tube | None:
        shelf = self._vault.tube(name) or self._vault.tube(importing(name))
        return None if shelf is None else make_declared(shelf.no, shelf.declared)

    def _declared(self) -> list[Tube]:
        return [make_declared(shelf.no, shelf.declared) for shelf in self._vault.tubes()]

    def forget(self, tube: Tube) -> None:
        """A dropped tube loses its name with its row."""


class PoolOutbox(Outbox):
    """The outboxes of all tubes of one pool. An entry leaves its outbox once the vault has the reply."""

    def __init__(self, runner: PoolRunner, tubes: Tubes, mirror: Mirror) -> None:
        super().__init__(runner, tubes)
        self._mirror = mirror
        self._pool_runner = runner

    def _receive(self, source: int, name: str, batch: list[OutboxEntry], effects: Effects, now: int | None) -> Tube:
        epoch = str(self._pool_runner.servers.epoch)
        tube = super()._receive(source, name, batch, effects, now)
        self._mirror.write_all({tube.no: (tube, epoch, self._pool_runner.servers.versions[1])})
        if tube.no != source:
            self._pool_runner.written(tube)
        return tube


def declaration(name: str, kind: Kind, given: dict[str, object]) -> bytes:
    """A tube as its row has it."""
    return encode_declared(Declared(name, kind, encode_given(given).decode()))

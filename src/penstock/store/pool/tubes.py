"""Tubes by name, as the vault has them; Redis knows their numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.kind import Kind
from penstock.core.options import Tube, encode_given
from penstock.store.pool.vault import Vault
from penstock.store.redis.runner import Runner
from penstock.store.redis.shards import Shards
from penstock.store.redis.tubes import Declared, Tubes, encode_declared, make_declared
from penstock.store.refusals import tube_exists


class Whole(Shards):
    """No tube is split: there is one server."""

    def of(self, tube: Tube) -> Sequence[Tube]:
        return (tube,)

    def for_replies(self, tube: Tube, source: int) -> Tube:
        return tube


class PoolTubes(Tubes):
    """The tubes of one pool. One that is new has no index yet; the first call on it begins one."""

    def __init__(self, runner: Runner, shards: Shards, vault: Vault) -> None:
        super().__init__(runner, shards)
        self._vault = vault

    def save(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        declared = encode_declared(Declared(name, kind, encode_given(given).decode()))
        shelf, made = self._vault.add_tube(name, declared)
        if not made and not exist_ok:
            raise tube_exists(name)
        return make_declared(shelf.no, shelf.declared)

    def find(self, name: str) -> Tube | None:
        shelf = self._vault.find_tube(name)
        return None if shelf is None else make_declared(shelf.no, shelf.declared)

    def all(self) -> list[Tube]:
        tubes = [make_declared(shelf.no, shelf.declared) for shelf in self._vault.tubes()]
        return sorted(tubes, key=lambda tube: tube.name)

    def forget(self, tube: Tube) -> None:
        """A dropped tube loses its name with its row."""

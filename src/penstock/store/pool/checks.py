"""The tasks of the index against those of the vault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import msgspec

from penstock.core.options import Tube
from penstock.core.results import Finding
from penstock.store.pool.mirror import PAGE
from penstock.store.pool.runner import PoolRunner
from penstock.store.pool.vault import Vault
from penstock.store.redis.encoding import task_id
from penstock.store.redis.queries import all_ids, scan

# A tube in which something changes during each of so many looks is left to the next check.
_LOOKS = 5


class Differences(msgspec.Struct, frozen=True):
    """The tasks that only the index has, and those that only the vault has."""

    tube: Tube
    strange: list[int]
    missing: list[int]

    def findings(self) -> Iterator[Finding]:
        """The same for people."""
        for id in self.strange:
            yield Finding(self.tube.name, id, "is in Redis, but not in the database of the pool", "repair removes it")
        for id in self.missing:
            what = "is in the database of the pool, but not in Redis"
            yield Finding(self.tube.name, id, what, "repair builds the index anew")


def differences(runner: PoolRunner, vault: Vault, tube: Tube) -> Differences:
    """What differs while nothing changes, but for what is marked: that is on its way to the vault."""
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

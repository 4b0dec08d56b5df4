"""What every call on a pool is made of: an index, a vault, and steps that are over when both have them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from penstock.core.options import Tube
from penstock.core.results import Effects, Settled, Stored
from penstock.core.task import Record
from penstock.errors import NoSuchTube, PayloadTooLarge, StoreError
from penstock.store.pool.data import Data
from penstock.store.pool.index import Index, Progress
from penstock.store.pool.mirror import Mirror
from penstock.store.pool.outbox import PoolOutbox
from penstock.store.pool.runner import Dirty, PoolRunner
from penstock.store.pool.server import WatchedServer
from penstock.store.pool.tubes import PoolTubes, Whole
from penstock.store.pool.vault import Vault
from penstock.store.redis import durability
from penstock.store.redis.location import Location
from penstock.store.redis.store import SCHEMA, RedisStore

T = TypeVar("T")


class PoolCalls(RedisStore):
    """The Redis store, with parts of a pool's own."""

    _runner: PoolRunner
    _servers: WatchedServer
    _tubes: PoolTubes

    def __init__(
        self, where: Location, vault: Vault, clock: Callable[[], int] | None = None, progress: Progress | None = None
    ) -> None:
        """`progress` is told of an index that is built now."""
        self._vault = vault
        self._progress = progress
        self._data = Data(vault)
        super().__init__(where, clock)

    def _connect(self, where: Location) -> WatchedServer:
        return WatchedServer(where)

    def _make_runner(self, modern: bool) -> PoolRunner:
        return PoolRunner(self._servers, self._keys, self._clock, modern=modern)

    def _make_shards(self) -> Whole:
        return Whole()

    def _make_tubes(self) -> PoolTubes:
        tubes = PoolTubes(self._runner, self._shards, self._vault)
        self._runner.sealed_as = tubes.sealed_as
        return tubes

    def _make_outbox(self) -> PoolOutbox:
        return PoolOutbox(self._runner, self._tubes, self._mirror)

    def _warnings(self, settings: durability.Settings) -> list[str]:
        """What Redis forgets is built anew, but not while it forgets by itself."""
        return durability.warnings({**settings, "aof_enabled": "1"})

    def _open(self) -> str:
        self._mirror = Mirror(self._runner, self._vault)
        self._index = Index(self._runner, self._vault, SCHEMA)
        self._index.ensure(self._progress)
        self._runner.restore = self._index.restore
        self._servers.recover = self._index.ensure
        return f"pool:{self._vault.name}"

    def close(self) -> None:
        super().close()
        self._vault.close()

    def after_fork(self) -> None:
        super().after_fork()
        self._mirror.reset()
        self._index.reset()
        self._data.held.reset()

    def _must_fit(self, *values: bytes | None) -> None:
        """PayloadTooLarge for what the database cannot store; asked before anything is done."""
        for value in values:
            if value is not None and len(value) > self._vault.most_bytes:
                raise PayloadTooLarge(
                    f"data of {len(value)} bytes is over the {self._vault.most_bytes} that {self._vault.label} stores: "
                    "store it elsewhere and put a reference, or raise max_allowed_packet of a MySQL"
                )

    def _step(self, call: Callable[[], T], tube: Tube | None = None, *, told: bool = True) -> T:
        """A call that changes something, over when the vault has it. `told`: with the data of all that it tells of."""
        with self._runner.gathering() as dirty:
            answer = call()
            records = answer.records if isinstance(answer, (Stored, Settled)) else []
            effects = answer if isinstance(answer, Effects) else getattr(answer, "effects", Effects())
            no = 0 if tube is None else tube.no
            with suppress(StoreError):  # what cannot be read now cannot be written either, which is told next
                if told:
                    self._data.fill(no, cast("list[Record | None]", records), effects, held=True)
            self._mirror.write_all(dirty)
            self._data.settled(no, records)
            return answer

    def _look(self, tube: Tube, call: Callable[[], T]) -> T:
        """A call that only reads, made again where the index was not whole all the while."""
        while True:
            epoch = self._runner.epoch
            try:
                answer = call()
            except NoSuchTube:
                if not self._index.restore(tube):
                    raise
                continue
            if self._index.is_open(tube, epoch):
                return answer
            if not self._index.restore(tube):
                raise self._runner.missing(tube)

    def _tell(self, effects: Effects, dirty: Dirty) -> bool:
        """What the clock or a session's end did: nobody's call fails for it. False: it was lost with the index."""
        with suppress(StoreError):
            self._data.fill(0, [], effects)
        return self._mirror.write_later(dirty)

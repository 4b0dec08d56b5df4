"""Replies between the tubes of a pool: an entry leaves its outbox once the vault has the reply."""

from __future__ import annotations

from penstock.core.results import Effects
from penstock.store.pool.mirror import Mirror
from penstock.store.pool.runner import PoolRunner
from penstock.store.redis.outbox import Outbox, OutboxEntry
from penstock.store.redis.tubes import Tubes


class PoolOutbox(Outbox):
    """The outboxes of all tubes of one pool."""

    def __init__(self, runner: PoolRunner, tubes: Tubes, mirror: Mirror) -> None:
        super().__init__(runner, tubes)
        self._mirror = mirror
        self._pool_runner = runner

    def _receive(self, source: int, name: str, batch: list[OutboxEntry], effects: Effects, now: int | None) -> None:
        epoch = str(self._pool_runner.epoch)
        super()._receive(source, name, batch, effects, now)
        tube = self._by_name[name]
        self._mirror.write_all({tube.no: (tube, epoch)})
        if tube.no != source:
            self._pool_runner.written(tube)

"""Hand-outs of a pool: a step in Redis, and the data from the vault in one query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import Blocked, Effects, Settled, Taken
from penstock.core.select import Sweep
from penstock.core.task import Record
from penstock.errors import OutcomeUnknown, StoreError, StoreUnavailable
from penstock.store.pool.calls import PoolCalls
from penstock.store.pool.server import Interrupted
from penstock.store.pool.vault import Session
from penstock.store.redis.connection import Reply
from penstock.store.redis.takes import Takes, Wanted

T = TypeVar("T")
# Whether the session lives, how long to wait, and id, record, …
Took = tuple[int, int, list[Reply]]
_NO_DATA = "its data is not in the database of the pool"


class PoolTakes(Takes):
    """The takes of a pool; `hand_out` carries out those without a lease."""

    def __init__(self, *parts: Any, hand_out: Callable[..., Took]) -> None:
        super().__init__(*parts)
        self._hand_out = hand_out

    def _take(self, tube: Tube, wanted: Wanted, now: int | None, effects: Effects) -> Took:
        call = partial(super()._take, tube, wanted, now, effects)
        return call() if tube.kind.leased else self._hand_out(tube, call, lambda took: took[2][::2])


class TakingCalls(PoolCalls):
    """Takes and recovers. A lease is Redis's alone; what is handed out without one, the vault must hear of."""

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, now: int | None = None,
    ) -> Taken:  # fmt: skip
        """As the contract says; the data of what is handed out is one query."""
        call = partial(super().take, tubes, count, handle, max_pri=max_pri, blocked=blocked, now=now)
        for tube in tubes:
            self._mirror.tidy(tube)
        with self._runner.gathering() as dirty:
            taken = call()
            self._fill(taken, now)
            self._mirror.write_later(dirty)
            return taken

    def _make_takes(self) -> Takes:
        parts = (self._runner, self._steps, self._registry, self._outbox, self._subscriber)
        return PoolTakes(*parts, hand_out=self._hand_out)

    def _hand_out(self, tube: Tube, call: Callable[[], T], ids: Callable[[T], Sequence[int]]) -> T:
        """A hand-out without a lease. Anyone may ack it at once: its data is read while nobody else can write."""
        done: list[T] = []

        def before(session: Session) -> None:
            if not done:  # else the transaction is begun anew
                with self._servers.strictly():
                    done.append(call())
            for id, data in self._vault.data(tube.no, ids(done[0]), session).items():
                self._data.held.keep(tube.no, id, data)

        while True:
            try:
                self._mirror.write(tube, str(self._runner.epoch), before=before)
                self._runner.written(tube)
                return done[0]
            except StoreError as error:
                if done:
                    raise OutcomeUnknown(
                        f"a hand-out of tube {tube.name} could not be written to {self._vault.label} ({error}): it may "
                        "or may not stand; look first"
                    ) from error
                if not isinstance(error, Interrupted):
                    raise
                if not self._index.restore(tube):
                    raise self._runner.missing(tube) from None

    def _fill(self, taken: Taken, now: int | None) -> None:
        """Give what was taken its data. When there is none to be had it all goes back, and the call fails."""
        tube, records = taken.tube, cast("list[Record | None]", taken.records)
        leased = tube is not None and tube.kind.leased
        try:
            self._data.fill(tube.no if tube else 0, records, taken.effects, held=not leased)
        except StoreError as error:
            if tube is not None and leased:
                moves = [_guarded("release", record, unstarted=True) for record in taken.records]
                super().settle(tube, moves, now=now)
            raise StoreUnavailable(f"{self._vault.label} gave no data of what is taken ({error}): try again") from error
        if tube is not None and leased:
            self._bury_empty(tube, taken, now)
        if tube is not None:
            self._remember(tube, taken.records)

    def _remember(self, tube: Tube, records: Sequence[Record]) -> None:
        """Hold the data of what is leased; that of others may change without us."""
        for record in records:
            if tube.kind.leased:
                self._data.held.keep(tube.no, record.id, record.payload)
            else:
                self._data.held.forget(tube.no, record.id)

    def _bury_empty(self, tube: Tube, taken: Taken, now: int | None) -> None:
        """A task without data was settled meanwhile, or somebody else wrote to the database: nobody can work on it."""
        empty = [record for record in taken.records if not record.payload]
        if empty:
            super().settle(tube, [_guarded("bury", record, reason=_NO_DATA) for record in empty], now=now)
            taken.records[:] = [record for record in taken.records if record.payload]
            taken.effects.events[:] = [event for event in taken.effects.events if event.record not in empty]

    def _recover(self, tube: Tube, sweep: Sweep, now: int | None) -> Settled:
        call = partial(super()._recover, tube, sweep, now)
        recovered = self._step(lambda: self._hand_out(tube, call, _ids), tube)
        self._remember(tube, [record for record in recovered.records if record is not None])
        return recovered


def _ids(settled: Settled) -> list[int]:
    return [record.id for record in settled.records if record is not None]


def _guarded(verb: str, record: Record, *, unstarted: bool = False, reason: str | None = None) -> Move:
    return Move(verb, record.id, record.owner, record.lease, reason=reason, unstarted=unstarted)

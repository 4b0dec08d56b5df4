"""What every call of the store begins with: a transaction, and a tube that lives."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from penstock.core.options import Tube
from penstock.store.base import Effects
from penstock.store.sqlite.connection import Connection, Transaction
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import Step, no_such_tube


class Calls:
    """One file, and its clock."""

    _db: Connection
    _clock: Callable[[], int]

    def _write(self, tube: Tube) -> Transaction:
        return self._db.relaxed if tube.temporary else self._db.durable

    def _write_many(self, tube: Tube, count: int) -> Transaction:
        """The same for a step on up to so many tasks that are there: with more than one, it can wait for more."""
        transaction = self._db.relaxed if tube.temporary else self._db.durable
        return transaction.patient if count > 1 else transaction

    def _must_live(self, db: apsw.Connection, tube: Tube) -> None:
        if db.execute(Q.tube_lives, (tube.no,)).get is None:
            raise no_such_tube(db, tube)

    def _step(self, db: apsw.Connection, tube: Tube, now: int, effects: Effects) -> Step:
        self._must_live(db, tube)
        return Step(db, tube, now, effects)

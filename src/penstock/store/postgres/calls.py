"""What every call of the store is made of: a function of the database, its moment, its answer, and what it refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import psycopg

from penstock.core.address import duplicate
from penstock.core.group import ended
from penstock.core.options import Tube
from penstock.errors import NoSuchTube, PenstockError
from penstock.store.base import Effects
from penstock.store.moving import hidden, seal_refused
from penstock.store.postgres import faults, rows
from penstock.store.postgres.connection import Connections, Row
from penstock.store.postgres.listener import Listener, Teller
from penstock.store.refusals import tube_awaited, tube_full, tube_missing, tube_taken


class Calls:
    """One schema of a database, and its clock."""

    _connections: Connections
    _clock: Callable[[], int] | None
    _ask: SimpleNamespace
    _teller: Teller
    _listener: Listener | None

    def _time(self, now: int | None) -> int | None:
        """What a function is given as its moment: None is the server's own."""
        return now if now is not None or self._clock is None else self._clock()

    def _read(self, query: str, values: Iterable[object]) -> list[Row]:
        """A call that may be made twice."""
        return self._connections.call(query, tuple(values), twice=True)

    def _call(
        self, tube: Tube, query: str, values: tuple[object, ...], *, twice: bool = False, patience: float | None = None
    ) -> list[Row]:
        """A call on a tube, which must be there."""
        try:
            return self._connections.call(query, values, twice=twice, patience=patience)
        except psycopg.DatabaseError as error:
            raise _refused(tube, error) or self._no_such_tube(tube) from error

    def _no_such_tube(self, tube: Tube) -> NoSuchTube:
        """The error for a handle whose tube was dropped or moved."""
        self._must_not_hide(tube.name)
        return tube_missing(tube)

    def _must_not_hide(self, name: str) -> None:
        """NoSuchTube where a tube of that name is on its way, here or away from here."""
        for row in self._read(self._ask.hidden_tube, (name,)):
            raise hidden(rows.tube(row))

    def _gather(self, found: Iterable[Row], effects: Effects | None = None) -> rows.Gathered:
        """What a step did, once it is noted whether it has notified."""
        gathered = rows.gather(found, effects)
        if gathered.told:
            self._teller.told()
        return gathered


def _refused(tube: Tube, error: psycopg.DatabaseError) -> PenstockError | None:
    """What a function said no to, in the contract's words; None: there is no such tube."""
    said, detail = error.diag.message_primary or "", error.diag.message_detail or ""
    match error.sqlstate:
        case faults.TUBE_TAKEN:
            return tube_taken(tube)
        case faults.TUBE_AWAITED:
            return tube_awaited(tube)
        case faults.TUBE_RESTLESS:
            return seal_refused(tube, said)
        case faults.ADDRESS_IN_USE:
            return duplicate(said, detail)
        case faults.GROUP_ENDED:
            return ended(said)
        case faults.TUBE_FULL:
            return tube_full(tube, int(said), int(detail))
    return None

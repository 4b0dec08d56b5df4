"""What the store's calls share: the database, and the moment of a step, which is the server's or the test's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.core.options import Tube
from penstock.errors import NoSuchTube
from penstock.store.moving import hidden
from penstock.store.mysql.answers import refusals
from penstock.store.mysql.database import Database
from penstock.store.mysql.pool import Link
from penstock.store.mysql.queries import Q
from penstock.store.mysql.tubes import load
from penstock.store.refusals import tube_missing

Clock = Callable[[], int]
# The server's clock is asked anew when the last answer that told it is older than this.
_CLOCK_SECONDS = 10.0


class Calls:
    """One database, and its clock."""

    _db: Database
    _clock: Clock | None
    _offset: tuple[float, float]  # the server's clock less ours, and when that was seen, in seconds

    def now(self) -> int:
        """The store's clock; the server's is reckoned from what it last said, without asking it each time."""
        if self._clock is not None:
            return self._clock()
        offset, seen = self._offset
        if time.monotonic() - seen > _CLOCK_SECONDS or not seen:
            self._heard(int(self._db.read(Q.now)[0][0]))
            offset, _ = self._offset
        return round((time.monotonic() + offset) * 1000)

    @contextmanager
    def _refusals(self, *asked: Tube | int) -> Iterator[None]:
        """What our procedures refuse, in penstock's words; of tubes that are on their way, where they are."""
        try:
            with refusals(*asked):
                yield
        except NoSuchTube:
            for tube in asked:
                if isinstance(tube, Tube):
                    self._must_not_hide(tube.name)
            raise

    def _must_not_hide(self, name: str) -> None:
        """NoSuchTube where a tube of that name is on its way, here or away from here."""
        for row in self._db.read(Q.hidden_tube, (name, name)):
            raise hidden(load(row))

    def _no_such_tube(self, tube: Tube) -> NoSuchTube:
        """The error for a handle whose tube was dropped or moved."""
        self._must_not_hide(tube.name)
        return tube_missing(tube)

    def _heard(self, now: int) -> int:
        moment = time.monotonic()
        self._offset = (now / 1000 - moment, moment)
        return now

    def _moment(self, now: int | None) -> int | None:
        """What procedures are told: the test's clock, or None for the server's."""
        return self._clock() if now is None and self._clock is not None else now

    def _fixed(self, link: Link, now: int | None) -> int:
        """The moment of a step of several statements."""
        moment = self._moment(now)
        return int(link.rows(Q.now)[0][0]) if moment is None else moment

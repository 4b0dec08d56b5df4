"""The put of one task that nothing else depends on: two statements, whose answers hold its id and its moment."""

from __future__ import annotations

import msgspec

from penstock.core.entry import stands_alone
from penstock.core.options import Tube
from penstock.core.task import Entry, Rank
from penstock.store.mysql.database import Database
from penstock.store.mysql.pool import Link
from penstock.store.mysql.prepared import LONGEST, Shape
from penstock.store.mysql.records import GIVEN_ID, NEVER, TIME, number, text


class PlainPut(msgspec.Struct, frozen=True):
    """The statements, but for the data, which stands between `before` and `after` in hexadecimal digits.

    The first leaves the id as its number. It is an INSERT that finds a row there, because an UPDATE costs the server
    15 µs more. Where the tube is gone it finds none, and the second is refused (faults.NO_ID), which undoes the first;
    else that leaves the moment, which is the same throughout a statement. An INSERT of a SELECT from penstock_id would
    need no such guard, and costs 40 µs more. `shape` is the same for prepared statements, where these can say it.
    """

    tube: Tube
    reserve: str
    before: str
    after: str
    shape: Shape | None

    def run(self, database: Database, payload: bytes) -> tuple[int, int]:
        """Store an entry that differs from the first one in its data alone; its id and its moment."""
        return database.run(lambda link: self._sent(link, payload), committed=True)

    def _sent(self, link: Link, payload: bytes) -> tuple[int, int]:
        prepared = link.prepared_put() if self.shape and len(payload) <= LONGEST else None
        if prepared and self.shape:
            return prepared.run(self.shape, payload)
        id, moment, _ = link.numbers(self.reserve, f"{self.before}{payload.hex()}{self.after}")
        return id, moment


def make_plain_put(tube: Tube, entry: Entry, now: int | None) -> PlainPut:
    """For tasks that are ready at once; `now` None: the server's clock."""
    time = TIME if now is None else str(now)
    expires = None if entry.ttl is None else f"{time}+{entry.ttl}"
    columns = {
        "tube": str(tube.no), "id": GIVEN_ID, "state": "'r'",
        "rank1": _rank(entry.rank1, time), "rank2": _rank(entry.rank2, time), "pri": str(entry.pri),
        "utube": text(entry.utube), "expires": expires or "NULL", "at": expires or NEVER, "ttr": number(entry.ttr),
        "max_attempts": number(entry.max_attempts), "callback": text(entry.callback),
    }  # fmt: skip
    given = {name: value for name, value in columns.items() if value != "NULL"}  # five fewer save the server 4 µs
    # The moment comes last: from there on LAST_INSERT_ID is the id no more.
    return PlainPut(
        tube,
        f"INSERT INTO penstock_id (tube,last) VALUES ({tube.no},0) ON DUPLICATE KEY UPDATE last=LAST_INSERT_ID(last+1)",
        f"INSERT INTO penstock_task ({','.join(given)},data,created) VALUES ({','.join(given.values())},X'",
        f"',LAST_INSERT_ID({time}))",
        Shape(tube, entry) if now is None and entry.utube is None and stands_alone(tube, entry) else None,
    )


def _rank(rank: Rank, time: str) -> str:
    # LAST_INSERT_ID is unsigned, and so would be what it is taken from: a rank below 0 is an error then.
    newest = "-CAST(LAST_INSERT_ID() AS SIGNED)" if rank.newest else ""
    return f"{rank.base!r}{f'+{time}' if rank.clock else ''}{newest}"

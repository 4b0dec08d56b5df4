"""The put of one task that nothing else depends on: two statements, whose answers hold its id and its moment."""

from __future__ import annotations

import msgspec

from penstock.core.options import Tube
from penstock.core.task import Entry, Rank, Record
from penstock.store.mysql.database import Database
from penstock.store.mysql.records import NEVER, number, stored, text

_TIME = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


class PlainPut(msgspec.Struct, frozen=True):
    """The statements, but for the data, which stands between `before` and `after` in hexadecimal digits.

    The first leaves the id as its number. Where the tube is gone it changes no row, and the second is refused
    (faults.NO_ID); else that leaves the moment, which is the same throughout a statement. An INSERT of a SELECT from
    penstock_id would need no such guard, and costs the server 40 µs more.
    """

    tube: Tube
    reserve: str
    before: str
    after: str

    def run(self, database: Database, entry: Entry) -> Record:
        """Store an entry that differs from the first one in its data alone."""
        insert = f"{self.before}{entry.payload.hex()}{self.after}"
        id, moment, _ = database.run(lambda link: link.numbers(self.reserve, insert), committed=True)
        return stored(self.tube, id, entry, moment, None)


def make_plain_put(tube: Tube, entry: Entry, now: int | None) -> PlainPut:
    """For tasks that are ready at once; `now` None: the server's clock."""
    time = _TIME if now is None else str(now)
    expires = None if entry.ttl is None else f"{time}+{entry.ttl}"
    columns = {
        "tube": str(tube.no), "id": "IF(ROW_COUNT(),LAST_INSERT_ID(),NULL)", "state": "'r'",
        "rank1": _rank(entry.rank1, time), "rank2": _rank(entry.rank2, time), "pri": str(entry.pri),
        "utube": text(entry.utube), "expires": expires or "NULL", "at": expires or NEVER, "ttr": number(entry.ttr),
        "max_attempts": number(entry.max_attempts), "callback": text(entry.callback),
    }  # fmt: skip
    given = {name: value for name, value in columns.items() if value != "NULL"}  # five fewer save the server 4 µs
    # The moment comes last: from there on LAST_INSERT_ID is the id no more.
    return PlainPut(
        tube,
        f"UPDATE penstock_id SET last=LAST_INSERT_ID(last+1) WHERE tube={tube.no}",
        f"INSERT INTO penstock_task ({','.join(given)},data,created) VALUES ({','.join(given.values())},X'",
        f"',LAST_INSERT_ID({time}))",
    )


def _rank(rank: Rank, time: str) -> str:
    # LAST_INSERT_ID is unsigned, and so would be what it is taken from: a rank below 0 is an error then.
    newest = "-CAST(LAST_INSERT_ID() AS SIGNED)" if rank.newest else ""
    return f"{rank.base!r}{f'+{time}' if rank.clock else ''}{newest}"

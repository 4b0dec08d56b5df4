"""Puts of tasks with names, addresses, replies or groups: as penstock_put takes and answers them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import msgspec
from pymysql.converters import escape_string

from penstock.core.address import duplicate, plan_put
from penstock.core.group import ended
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.errors import PenstockError
from penstock.store.mysql import faults
from penstock.store.mysql.answers import sql
from penstock.store.mysql.database import Refused
from penstock.store.mysql.pool import Link
from penstock.store.mysql.putting import packed
from penstock.store.mysql.records import make_record
from penstock.store.mysql.tubes import rank_parts
from penstock.store.mysql.wire import Rows

_encode = msgspec.json.Encoder().encode
# How an entry says that its address must be free.
_MUST_BE_FREE = -1


def tied(tube: Tube, entries: Sequence[Entry]) -> bool:
    """Whether a put needs `penstock_put`: the others are inserted as they come."""
    if not tube.kind.leased:
        return True
    # Not any(): a generator costs twice as much, and this stands before every put.
    return True in [e.address is not None or e.reply_to is not None or e.group is not None for e in entries]


class Answer:
    """What the server made of some entries: `before` and `after` are the rows of what else happened."""

    def __init__(self, rows: Rows, entries: Sequence[Entry]) -> None:
        start = next(place for place, row in enumerate(rows) if row[0] == "put")
        self.before, self.after = rows[:start], rows[start:]
        self.moment = int(rows[start][2])
        self.found: list[Record] = []
        self.fresh: list[Record] = []
        self.replaced: list[Record] = []
        new = (row for row in rows if row[0] == "fresh")
        held = {row[1]: row for row in rows if row[0] == "held"}
        for place, entry in enumerate(entries, 1):
            what, _, text, data = held.get(place) or next(new)
            record = make_record(text, entry.payload if data is None else data)
            self.found.append(record)
            if data is None:
                (self.fresh if what == "fresh" else self.replaced).append(record)


class TiedPut:
    """A put of entries, each address of which stands for one task, fresh or there."""

    def __init__(self, tube: Tube, entries: Sequence[Entry], now: int | None) -> None:
        # As if no address were held, core decides what the entries make of each other.
        plan = plan_put(entries, {})
        self._tube = tube
        self._now = now
        self._entries = plan.fresh
        self._turns = _turns(entries)
        self._first = 0  # of those under way
        #: Where the answer to each entry stands among those of all tasks.
        self.places = plan.places

    def put(self, link: Link) -> list[Answer]:
        """Put all, in as few packets as the server takes; what it answered to each."""
        values = [escape_string(_encode(self._row(entry)).decode()) for entry in self._entries]
        chunks = list(packed(values, link.max_packet, self._tube))
        answers: list[Answer] = []
        self._first = 0
        for number, chunk in enumerate(chunks, 1):
            send = link.finish if number == len(chunks) else link.packet
            answers.append(Answer(send(self._call(chunk)), self._entries[self._first : self._first + len(chunk)]))
            self._first += len(chunk)
        return answers

    def __len__(self) -> int:
        return len(self._entries)

    def _call(self, values: Sequence[str]) -> str:
        flags = f"{bool(self._turns)}, {any(entry.group is not None for entry in self._entries)}"
        limits = f"{sql(self._tube.capacity)}, {sql(self._now)}"
        return f"CALL penstock_put({self._tube.no}, '[{','.join(values)}]', {flags}, {limits})"

    def _row(self, entry: Entry) -> tuple[object, ...]:
        turn = None if entry.address is None else self._turns[entry.address]
        return (
            *rank_parts(entry.rank1), *rank_parts(entry.rank2), entry.pri, entry.utube, entry.ttl, entry.delay,
            entry.ttr, entry.max_attempts, entry.callback, b64encode(entry.payload).decode(), entry.address, turn,
            entry.reply_to, entry.group, entry.group_no,
        )  # fmt: skip

    def refused(self, error: Refused) -> PenstockError:
        """What the procedure refused, in core's words."""
        if error.code == faults.ADDRESS_IN_USE:
            place = error.text.rstrip("t!")
            return duplicate(self._entries[self._first + int(place) - 1].address, error.text.removeprefix(place))
        name = next(entry.group for entry in self._entries if entry.group_no is not None)
        return ended(name or "")


def _turns(entries: Sequence[Entry]) -> dict[str, int | None]:
    """What becomes of the task that holds an address: -1 an error, None nothing, else new content, in this order."""
    turns: dict[str, int | None] = {}
    for place, entry in enumerate(entries):
        if entry.address is not None and turns.get(entry.address) is None:
            turn = {"error": _MUST_BE_FREE, "replace": place, "refresh": place}.get(entry.duplicate)
            turns[entry.address] = turn
    return turns

"""New tasks as SQL: the rows of a put, whose ids and moment the server gives, and the put of one plain task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from penstock.core.entry import new_record, stands_alone
from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE, QUEUED, Entry, Rank, Record
from penstock.store.mysql import queues
from penstock.store.mysql.pool import Link, Statement
from penstock.store.mysql.prepared import LONGEST, Shape
from penstock.store.mysql.queries import NEVER, TIME, Q
from penstock.store.mysql.server import Server
from penstock.store.mysql.wire import Rows, fill, literal
from penstock.store.sql.queries import ID_BITS
from penstock.store.sql.step import first_pk

# The id that the statement before gave, which found its tube there: an INSERT that changed a row counts as two.
GIVEN_ID = "IF(ROW_COUNT()=2,LAST_INSERT_ID(),NULL)"
# Bytes of an INSERT: more rows are several statements, so that packets can be divided between them.
_MOST = 2**18
_LINKS = ",address,reply_to,group_name,group_no"


class NewTasks:
    """Tasks of one tube that a packet stores. The pk before its first stands in a variable of the server."""

    def __init__(self, tube: Tube, entries: Sequence[Entry], place: int = 0) -> None:
        self.tube = tube
        self.entries = entries
        self._last, self._ms, self._seq = f"@p_i{place}", f"@p_ms{place}", f"@p_seq{place}"
        self._name, self._gained = f"@p_name{place}_", f"@p_gained{place}"
        self._named = tube.kind.hand_out == CLOCK and any(entry.address is None for entry in entries)
        self.delayed = sum(entry.unstarted or entry.delay > 0 for entry in entries)

    def reserve(self) -> list[Statement]:
        """Give them their ids, which locks the tube's last one. Where the tube is gone they are refused later."""
        no, count = self.tube.no, len(self.entries)
        values = {"tube": no, "count": count}
        marks = self.tube.kind.hand_out == DELIVER
        found = f"SET {self._last}={GIVEN_ID}+{first_pk(self.tube) - count}"
        reserved: list[Statement] = [fill(Q.reserve_marks if marks else Q.reserve, values), found]
        if marks:
            found = f"SELECT last_ms,last_seq-{count} INTO {self._ms},{self._seq} FROM penstock_id WHERE tube={no}"
            reserved.append(f"{found} FOR UPDATE")
        return reserved

    def store(self) -> list[Statement]:
        """Insert them, let them into their micro-queues, and count what is delayed."""
        statements: list[Statement] = []
        waiting = Counter[str]()
        if self.tube.kind.per_utube:
            for entry in self.entries:
                if not (entry.unstarted or entry.delay):
                    waiting[entry.utube or NO_UTUBE] += 1
            if waiting:
                statements += [queues.setting(self.tube, queues.labels(waiting)), queues.enter(self.tube, waiting)]
        if self._named:
            statements += [self._find_name(place) for place, entry in self._placed() if entry.address is None]
        statements += self._inserts()
        if waiting:
            overtaking = self.tube.kind.order[0] != "id"
            statements += queues.make_heads(self.tube, max(waiting.values()), overtaking=overtaking)
            statements.append(f"SET {self._gained}=@p_gained")
        if self.delayed:
            statements.append(f"INSERT INTO penstock_delta (tube,`delayed`) VALUES ({self.tube.no},{self.delayed})")
        return statements

    def show(self) -> list[Statement]:
        """Two results that `records` reads."""
        marks = f"{self._ms},{self._seq}" if self.tube.kind.hand_out == DELIVER else "0,0"
        laned = self.tube.kind.per_utube and len(self.entries) > self.delayed
        told = f"SELECT {self._last},@p_now,{marks},{self._gained if laned else 0}"
        if not (laned or self._named):
            return [told]
        # Of a micro-queue kind only the heads: all others wait, where they are ready.
        heads = " AND state='r'" if laned else ""
        return [
            told,
            f"SELECT pk,rank2,address FROM penstock_task FORCE INDEX (PRIMARY) WHERE pk>{self._last} "
            f"AND pk<={self._last}+{len(self.entries)}{heads} ORDER BY pk",
        ]

    def records(self, results: list[Rows]) -> tuple[list[Record], int]:
        """The tasks as they are stored, from the results of `show`; and how many became takeable."""
        ((before, now, ms, seq, gained),) = results.pop(0)
        first = int(before) - first_pk(self.tube) + 1
        entries = self.entries
        if self.tube.kind.hand_out == DELIVER:
            entries = [
                replace(entry, address=shown_mark((int(ms), int(seq) + place))) for place, entry in self._placed()
            ]
        records = [new_record(entry, id, int(now)) for id, entry in enumerate(entries, first)]
        if self._named:
            records = [
                replace(record, address=address)
                for record, (_, _, address) in zip(records, results.pop(0), strict=True)
            ]
        if not self.tube.kind.per_utube:
            return records, sum(record.state == "r" for record in records)
        if len(self.entries) > self.delayed:
            base = first_pk(self.tube)
            heads = {int(pk) - base: rank2 for pk, rank2, _ in results.pop(0)}
            records = [self._placed_record(record, heads) for record in records]
        return records, int(gained)

    def _placed_record(self, record: Record, heads: Mapping[int, float]) -> Record:
        if record.id in heads:
            return replace(record, rank2=heads[record.id]) if self.tube.fair else record
        if record.state != "r":
            return replace(record, rank2=0) if self.tube.fair else record
        return replace(record, state=QUEUED, rank2=0 if self.tube.fair else record.rank2)

    def _placed(self) -> enumerate[Entry]:
        return enumerate(self.entries, 1)

    def _find_name(self, place: int) -> str:
        """The name of a reply in a round tube: with as many dashes as there are such names."""
        id = f"({self._last}+{place - first_pk(self.tube)})"
        used = ",".join(f"CONCAT('reply-',{id},'{'-' * dashes}')" for dashes in range(8))
        return (
            f"SELECT CONCAT('reply-',{id},REPEAT('-',COUNT(*))) INTO {self._name}{place} FROM penstock_task "
            f"FORCE INDEX (penstock_address) WHERE tube={self.tube.no} AND address IN ({used})"
        )

    def _inserts(self) -> list[Statement]:
        given = self._given()
        head = f"INSERT INTO penstock_task (pk,tube,state,rank1,rank2,pri,created,data{''.join(given)}) VALUES "
        statements: list[Statement] = []
        rows: list[str] = []
        size = 0
        for place, entry in self._placed():
            row = self._row(place, entry, given)
            if rows and size + len(row) > _MOST:
                statements.append(head + ",".join(rows))
                rows, size = [], 0
            rows.append(row)
            size += len(row)
        statements.append(head + ",".join(rows))
        return statements

    def _given(self) -> list[str]:
        """The columns that not all tasks leave as they are by default: the server reads no others."""
        entries = self.entries
        given = [
            (",utube", any(entry.utube is not None for entry in entries)),
            (",expires,at", any(entry.ttl is not None or entry.delay for entry in entries)),
            (",ttr", any(entry.ttr is not None for entry in entries)),
            (",max_attempts", any(entry.max_attempts is not None for entry in entries)),
            (",callback", any(entry.callback is not None for entry in entries)),
            (_LINKS, not self.tube.kind.leased or any(
                not (entry.address is entry.reply_to is entry.group is None) for entry in entries
            )),
        ]  # fmt: skip
        return [columns for columns, some in given if some]

    def _row(self, place: int, entry: Entry, given: Sequence[str]) -> str:
        state = "g" if entry.unstarted else "~" if entry.delay else "q" if self.tube.kind.per_utube else "r"
        rank2 = "0" if self.tube.fair else self._rank(entry.rank2, place)
        row = (
            f"({self._last}+{place},{self.tube.no},'{state}',{self._rank(entry.rank1, place)},{rank2},{entry.pri},"
            f"@p_now,X'{entry.payload.hex()}'"
        )
        for columns in given:
            row += f",{self._value(columns, place, entry)}"
        return row + ")"

    def _value(self, columns: str, place: int, entry: Entry) -> str:
        match columns:
            case ",utube":
                return literal(entry.utube)
            case ",expires,at":
                expires = "NULL" if entry.ttl is None else f"@p_now+{entry.ttl + entry.delay}"
                at = f"@p_now+{entry.delay}" if entry.delay else str(NEVER) if entry.ttl is None else expires
                return f"{expires},{at}"
            case ",ttr":
                return literal(entry.ttr)
            case ",max_attempts":
                return literal(entry.max_attempts)
            case ",callback":
                return literal(entry.callback)
            case _:
                return self._links(place, entry)

    def _links(self, place: int, entry: Entry) -> str:
        if self.tube.kind.hand_out == DELIVER:
            address = f"CONCAT({self._ms},'-',{self._seq}+{place})"
        elif self._named and entry.address is None:
            address = f"{self._name}{place}"
        else:
            address = literal(entry.address)
        return f"{address},{literal(entry.reply_to)},{literal(entry.group)},{literal(entry.group_no)}"

    def _rank(self, rank: Rank, place: int) -> str:
        clock = "+@p_now" if rank.clock else ""
        newest = f"-CAST({self._last}+{place - first_pk(self.tube)} AS SIGNED)" if rank.newest else ""
        return f"{rank.base!r}{clock}{newest}"


class PlainPut(msgspec.Struct, frozen=True):
    """The put of a task that stands alone. `before` and `after` stand around its data, in hexadecimal digits.

    The first statement leaves the id as its number; where the tube is gone, the second is refused (faults.NO_ID), which
    undoes the first; else that leaves the moment, which is the same throughout a statement. `shape` is the same for
    prepared statements, where these can say it.
    """

    tube: Tube
    reserve: str
    before: str
    after: str
    shape: Shape | None

    def run(self, server: Server, payload: bytes) -> tuple[int, int]:
        """Store an entry that differs from the first one in its data alone; its id and its moment."""
        return server.run(lambda link: self._sent(link, payload), committed=True)

    def _sent(self, link: Link, payload: bytes) -> tuple[int, int]:
        prepared = link.prepared_put() if self.shape and len(payload) <= LONGEST else None
        if prepared and self.shape:
            return prepared.run(self.shape, payload)
        told = link.send([self.reserve, f"{self.before}{payload.hex()}{self.after}"]).told
        return told[0].number, told[1].number


def make_plain_put(tube: Tube, entry: Entry) -> PlainPut:
    """For tasks that are ready at once."""
    assert stands_alone(tube, entry)
    expires = None if entry.ttl is None else f"{TIME}+{entry.ttl}"
    columns = {
        "pk": f"{GIVEN_ID}+{tube.no << ID_BITS}", "tube": str(tube.no), "state": "'r'", "rank1": repr(entry.rank1.base),
        "rank2": repr(entry.rank2.base), "pri": str(entry.pri), "utube": literal(entry.utube),
        "expires": expires or "NULL", "at": expires or str(NEVER), "ttr": literal(entry.ttr),
        "max_attempts": literal(entry.max_attempts), "callback": literal(entry.callback),
    }  # fmt: skip
    given = {name: value for name, value in columns.items() if value != "NULL"}  # five fewer save the server 4 µs
    # The moment comes last: from there on LAST_INSERT_ID is the id no more.
    return PlainPut(
        tube,
        fill(Q.reserve, {"tube": tube.no, "count": 1}),
        f"INSERT INTO penstock_task ({','.join(given)},data,created) VALUES ({','.join(given.values())},X'",
        f"',LAST_INSERT_ID({TIME}))",
        Shape(tube, entry) if entry.utube is None else None,
    )

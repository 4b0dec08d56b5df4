"""New tasks as statements of a packet: their ids and their time come from the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from penstock.core.entry import new_record
from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE, QUEUED, Entry, Rank, Record
from penstock.store.mysql import queues
from penstock.store.mysql.queries import NEVER, Q
from penstock.store.mysql.wire import Raw, Rows, fill, joined, literal
from penstock.store.sql.step import first_pk

# The marks of a reliable tube's messages: a time, and a number that starts again with each.
_MARKS = ", last_seq = IF(@p_now > last_ms, 0, last_seq) + {count}, last_ms = GREATEST(last_ms, @p_now)"
# Columns that are left out if no task of the put has them: the server need not read them.
_OPTIONAL = {
    "utube": "utube", "ttr": "ttr", "extra": "extra", "reply_to": "reply_to", "group": "group_name",
    "group_no": "group_no",
}  # fmt: skip


class NewTasks:
    """Tasks of one tube that a packet stores. A variable of the server has the pk before the first one."""

    def __init__(self, tube: Tube, entries: Sequence[Entry], place: int = 0) -> None:
        self.tube = tube
        self.entries = entries
        self.delayed = sum(entry.unstarted or entry.delay > 0 for entry in entries)
        self._last, self._ms, self._seq = f"@p_i{place}", f"@p_ms{place}", f"@p_seq{place}"
        self._name, self._gained = f"@p_name{place}_", f"@p_gained{place}"
        self._marked = tube.kind.hand_out == DELIVER
        self._named = tube.kind.hand_out == CLOCK and any(entry.address is None for entry in entries)
        self._laned = tube.kind.per_utube and len(entries) > self.delayed

    def reserve(self) -> list[str]:
        """Give them their ids, which locks the tube's last one. If the tube is gone, they are refused later."""
        no, count = self.tube.no, len(self.entries)
        marks = Raw(_MARKS.format(count=count) if self._marked else "")
        reserved = [
            fill(Q.reserve, tube=no, count=count, marks=marks),
            # An INSERT that changed the row it found counts as two.
            f"SET {self._last}=IF(ROW_COUNT()=2,LAST_INSERT_ID(),NULL)+{first_pk(self.tube) - count}",
        ]
        if self._marked:
            found = f"SELECT last_ms,last_seq-{count} INTO {self._ms},{self._seq} FROM penstock_id WHERE tube={no}"
            reserved.append(f"{found} FOR UPDATE")
        return reserved

    def store(self) -> list[str]:
        """Insert them, add them to their micro-queues, and count those that are delayed."""
        statements: list[str] = []
        waiting = Counter[str]()
        if self._laned:
            ready = (entry for entry in self.entries if not (entry.unstarted or entry.delay))
            waiting = Counter(entry.utube or NO_UTUBE for entry in ready)
            statements += [queues.setting(self.tube, queues.labels(waiting)), queues.enter(self.tube, waiting)]
        if self._named:
            statements += [self._find_name(place) for place, entry in self._placed() if entry.address is None]
        statements += self._inserts()
        if self._laned:
            overtaking = self.tube.kind.order[0] != "id"
            statements += queues.make_heads(self.tube, max(waiting.values()), overtaking=overtaking)
            statements.append(f"SET {self._gained}=@p_gained")
        if self.delayed:
            statements.append(f"INSERT INTO penstock_delta (tube,`delayed`) VALUES ({self.tube.no},{self.delayed})")
        return statements

    def show(self) -> list[str]:
        """One or two results, which `records` reads."""
        marks = f"{self._ms},{self._seq}" if self._marked else "0,0"
        numbers = f"SELECT {self._last},@p_now,{marks},{self._gained if self._laned else 0}"
        if not (self._laned or self._named):
            return [numbers]
        # Of a micro-queue kind only the heads: all other ready tasks wait.
        heads = " AND state='r'" if self._laned else ""
        return [
            numbers,
            f"SELECT pk,rank2,address FROM penstock_task FORCE INDEX (PRIMARY) WHERE pk>{self._last} "
            f"AND pk<={self._last}+{len(self.entries)}{heads} ORDER BY pk",
        ]

    def records(self, results: list[Rows]) -> tuple[list[Record], int]:
        """The tasks as they are stored, from the results of `show`; and how many became takeable."""
        ((before, now, ms, seq, gained),) = results.pop(0)
        first = int(before) - first_pk(self.tube) + 1
        entries, moment = self.entries, int(now)
        if self._marked:
            marks = [shown_mark((int(ms), int(seq) + place)) for place, _ in self._placed()]
            entries = [replace(entry, address=mark) for entry, mark in zip(entries, marks, strict=True)]
        records = [new_record(entry, id, moment) for id, entry in enumerate(entries, first)]
        if self._named:
            names = [address for _, _, address in results.pop(0)]
            records = [replace(record, address=name) for record, name in zip(records, names, strict=True)]
        if not self.tube.kind.per_utube:
            return records, len(records) - self.delayed
        heads: dict[int, float] = {}
        if self._laned:
            base = first_pk(self.tube)
            heads = {int(pk) - base: rank2 for pk, rank2, _ in results.pop(0)}
        return [self._in_queue(record, heads) for record in records], int(gained)

    def _in_queue(self, record: Record, heads: Mapping[int, float]) -> Record:
        waits = record.state == "r" and record.id not in heads
        rank2 = heads.get(record.id, 0) if self.tube.fair else record.rank2
        return replace(record, state=QUEUED if waits else record.state, rank2=rank2)

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

    def _inserts(self) -> list[str]:
        entries, kind = self.entries, self.tube.kind
        given = [field for field in _OPTIONAL if any(getattr(entry, field) is not None for entry in entries)]
        timed = any(entry.ttl is not None or entry.delay for entry in entries)
        addressed = not kind.leased or any(entry.address is not None for entry in entries)
        columns = [*(["expires,at"] if timed else []), *(["address"] if addressed else [])]
        columns += [_OPTIONAL[field] for field in given]
        head = (
            f"INSERT INTO penstock_task ({','.join(['pk,tube,state,rank1,rank2,pri,created,data', *columns])}) VALUES "
        )
        last, no, ready, fair = self._last, self.tube.no, "q" if kind.per_utube else "r", self.tube.fair
        rows: list[str] = []
        for place, entry in self._placed():
            state = "g" if entry.unstarted else "~" if entry.delay else ready
            rank2 = "0" if fair else self._rank(entry.rank2, place)
            row = f"({last}+{place},{no},'{state}',{self._rank(entry.rank1, place)},{rank2},{entry.pri},@p_now,"
            row += f"X'{entry.payload.hex()}'"
            if timed:
                expires = "NULL" if entry.ttl is None else f"@p_now+{entry.ttl + entry.delay}"
                at = f"@p_now+{entry.delay}" if entry.delay else str(NEVER) if entry.ttl is None else expires
                row += f",{expires},{at}"
            if addressed:
                row += f",{self._address(place, entry)}"
            for field in given:
                row += f",{literal(getattr(entry, field))}"
            rows.append(row + ")")
        return [head + part for part in joined(rows)]

    def _address(self, place: int, entry: Entry) -> str:
        if self._marked:
            return f"CONCAT({self._ms},'-',{self._seq}+{place})"
        return f"{self._name}{place}" if self._named and entry.address is None else literal(entry.address)

    def _rank(self, rank: Rank, place: int) -> str:
        clock = "+@p_now" if rank.clock else ""
        newest = f"-CAST({self._last}+{place - first_pk(self.tube)} AS SIGNED)" if rank.newest else ""
        return f"{rank.base!r}{clock}{newest}"

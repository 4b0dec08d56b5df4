"""Builds packets of statements for changes: new tasks, acks, and the engine's Deltas with their guards and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from random import getrandbits
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from penstock.core.ending import SUPERSEDED_MS, kept_under
from penstock.core.entry import new_record
from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.lifecycle import Move
from penstock.core.micro_queue import mark_queued
from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE, QUEUED, Entry, Rank, Record
from penstock.engine.port import Delta, Flushed, Row
from penstock.store.mysql.mysql_queries import COUNTED, NEVER, Q, require
from penstock.store.mysql.mysql_wire import Raw, Rows, fill, joined, literal
from penstock.store.sql.sql_queries import COLUMNS
from penstock.store.sql.sql_step import RowClasses, first_pk, group_values

# Columns that are omitted if no task of the put has a value, so that the server need not parse them.
_OPTIONAL = ("utube", "ttr", "extra", "reply_to", "group", "group_no")


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    groups = dict[Any, list[Any]]()
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def add_counts(no: int, numbers: Mapping[str, int | str]) -> str:
    """Return the statement that adds numbers, or expressions of SQL, to these counters of a tube."""
    columns, values = ",".join(COUNTED[name] for name in numbers), ",".join(map(str, numbers.values()))
    return fill(Q.add_counts, tube=no, columns=Raw(columns), numbers=Raw(values))


def _enter_queues(tube: Tube, column: str, counts: Mapping[str, int], *, overtaking: bool = False) -> list[str]:
    """Lock micro-queues, and add to one of their counts. `overtaking`: a waiting task may precede a head."""
    queues = sorted((label.encode().hex().upper(), count) for label, count in counts.items())
    rows = ",".join(f"({tube.no},X'{name}',{count},@p_fair*@p_now)" for name, count in queues)
    names = msgspec.json.encode([name for name, _ in queues]).decode()
    numbers = f"@p_t={tube.no},@p_l={tube.utube_limit},@p_fair={int(tube.fair)},@p_over={int(overtaking)},@p_gained=0"
    return [f"SET {numbers},@p_us='{names}'", fill(Q.enter_queues, column=Raw(column), rows=Raw(rows))]


def _make_heads(tube: Tube, counts: Mapping[str, int]) -> list[str]:
    """Promote the first waiting tasks, one of each micro-queue per round. `counts`: the changes of each micro-queue."""
    return [Q.find_heads, Q.make_heads] * min(tube.utube_limit, max(counts.values()))


def ack_packet(tube: Tube, moves: Sequence[Move], moment: str) -> tuple[list[str], list[Move]]:
    """Return the statements that remove all of these tasks or none, and the moves whose outcome is stored.

    Addresses, groups and micro-queues come from `Move.seen`.
    """
    counted = add_counts(tube.no, {"taken": -len(moves), "done": len(moves), "ack": len(moves)})
    if not tube.kind.leased:
        named = fill(Q.ack_named, tube=tube.no, texts=[move.name for move in moves])
        return [fill(Q.require_tube, tube=tube.no), named, require(f"ROW_COUNT() = {len(moves)}"), counted], []
    base, per_utube = first_pk(tube), tube.kind.per_utube
    seen = [(move, move.seen) for move in moves if move.seen is not None]
    ended = [(move, task.address) for move, task in seen if task.address is not None]
    groups = Counter(task.group_no for _, task in seen if task.group_no is not None)
    queues = Counter(task.utube or NO_UTUBE for _, task in seen) if per_utube else {}
    packet: list[str] = []
    if queues or ended or groups:  # a tube with a taken task cannot be dropped
        packet = [f"SET @p_t={tube.no},@p_now={moment},@p_until={moment}+{tube.retention}"]
    for no, count in sorted(groups.items()):
        packet += [fill(Q.count_down, no=no, count=count), require("ROW_COUNT() = 1")]
    if queues:
        packet += _enter_queues(tube, "taken", {label: -count for label, count in queues.items()})
    if ended:
        rows = [f"({base | move.id},{tube.no},{literal(name)},{literal(move.result)},@p_until)" for move, name in ended]
        packet += [fill(Q.add_outcomes, rows=Raw(part)) for part in joined(rows)]
    values = {"plain": int(len(seen) < len(moves)), "now": Raw(moment)}
    for (session, lease), pks in _grouped(((move.session, move.lease), base | move.id) for move in moves).items():
        packet.append(fill(Q.ack, ids=sorted(pks), session=session or -1, lease=lease, **values))
        packet.append(require(f"ROW_COUNT() = {len(pks)}"))
    if queues:
        packet += [Q.forget_empty_queues, *_make_heads(tube, queues), "SELECT @p_gained"]
    return [*packet, counted], [move for move, _ in ended]


class NewTasks:
    """New tasks of one tube that a packet stores. A server variable holds the pk before the first one."""

    def __init__(self, tube: Tube, entries: list[Entry], place: int = 0) -> None:
        self.tube = tube
        self.entries = entries
        self.delayed = sum(entry.unstarted or entry.delay > 0 for entry in entries)
        self._last, self._ms, self._seq = f"@p_i{place}", f"@p_ms{place}", f"@p_seq{place}"
        self._marked = tube.kind.hand_out == DELIVER
        # Server variables with the names of replies in a round tube, by position.
        unnamed = (number for number, entry in self._placed() if entry.address is None)
        clocked = tube.kind.hand_out == CLOCK
        self._names = {number: f"@p_name{place}_{number}" for number in unnamed} if clocked else {}
        self._per_utube = tube.kind.per_utube and len(entries) > self.delayed

    def reserve(self) -> list[str]:
        """Return the statements that reserve ids, and lock the tube's last id. If the tube is gone, `store` fails."""
        no, count = self.tube.no, len(self.entries)
        reserved = [
            Q.reserve.using(str(no), str(count)),
            # ROW_COUNT() is 2 if the INSERT updated an existing row.
            f"SET {self._last}=IF(ROW_COUNT()=2,LAST_INSERT_ID(),NULL)+{first_pk(self.tube) - count}",
        ]
        if self._marked:
            found = f"SELECT last_ms,last_seq-{count} INTO {self._ms},{self._seq} FROM penstock_id WHERE tube={no}"
            reserved += [fill(Q.next_marks, tube=no, count=count), f"{found} FOR UPDATE"]
        return reserved

    def store(self) -> list[str]:
        """Return the statements that insert the tasks, add them to their micro-queues, and count delayed ones. The
        result of the last one is for `records`."""
        statements: list[str] = []
        waiting = Counter[str]()
        if self._per_utube:
            waiting = Counter(entry.utube or NO_UTUBE for entry in self.entries if not (entry.unstarted or entry.delay))
            statements += _enter_queues(self.tube, "waiting", waiting, overtaking=self.tube.kind.order[0] != "id")
        statements += [self._find_name(number) for number in self._names]
        statements += self._inserts()
        if self._per_utube:
            statements += _make_heads(self.tube, waiting)
        if self.delayed:
            statements.append(add_counts(self.tube.no, {"delayed": self.delayed}))
        marks = f"{self._ms},{self._seq}" if self._marked else "0,0"
        gained = "@p_gained" if self._per_utube else "0"
        return [*statements, f"SELECT {','.join([self._last, '@p_now', marks, gained, *self._names.values()])}"]

    def records(self, row: tuple[Any, ...]) -> tuple[list[Record], int]:
        """Return the stored tasks, from the result of `store`, and how many became takeable."""
        before, now, ms, seq, gained = map(int, row[:5])
        names = dict(zip(self._names, row[5:], strict=True))
        if self._marked:
            names = {place: shown_mark((ms, seq + place)) for place, _ in self._placed()}
        first = before - first_pk(self.tube)
        records = [new_record(entry, first + place, now) for place, entry in self._placed()]
        if names:
            records = [replace(record, address=names.get(at, record.address)) for at, record in enumerate(records, 1)]
        if self.tube.kind.per_utube:
            return mark_queued(records, gained), gained
        return records, len(records) - self.delayed

    def _find_name(self, place: int) -> str:
        """Return the query that names a reply in a round tube: its id, plus one dash for each such name in use."""
        id = f"({self._last}+{place - first_pk(self.tube)})"
        used = ",".join(f"CONCAT('reply-',{id},'{'-' * dashes}')" for dashes in range(8))
        return fill(Q.find_name, id=Raw(id), used=Raw(used), tube=self.tube.no, name=Raw(self._names[place]))

    def _placed(self) -> enumerate[Entry]:
        return enumerate(self.entries, 1)

    def _inserts(self) -> list[str]:
        entries, kind, last, ready = self.entries, self.tube.kind, self._last, "q" if self.tube.kind.per_utube else "r"
        columns = {
            "pk": [f"{last}+{place}" for place, _ in self._placed()],
            "state": [f"'{'g' if entry.unstarted else '~' if entry.delay else ready}'" for entry in entries],
            "rank1": [self._rank(entry.rank1, place) for place, entry in self._placed()],
            "rank2": ["0" if self.tube.fair else self._rank(entry.rank2, place) for place, entry in self._placed()],
            "pri": [str(entry.pri) for entry in entries],
            "data": [f"X'{entry.payload.hex()}'" for entry in entries],
        }
        if any(entry.ttl is not None or entry.delay for entry in entries):
            ends = ["NULL" if entry.ttl is None else f"@p_now+{entry.ttl + entry.delay}" for entry in entries]
            columns["expires"] = ends
            columns["at"] = [
                f"@p_now+{entry.delay}" if entry.delay else str(NEVER) if entry.ttl is None else end
                for entry, end in zip(entries, ends, strict=True)
            ]
        if not kind.leased or any(entry.address is not None for entry in entries):
            columns["address"] = [self._address(place, entry) for place, entry in self._placed()]
        for field in _OPTIONAL:
            values = list(map(attrgetter(field), entries))
            if values.count(None) < len(values):
                columns[COLUMNS[field]] = list(map(literal, values))
        head = f"INSERT INTO penstock_task (tube,created,{','.join(columns)}) VALUES "
        rows = zip(*columns.values(), strict=True)
        return [head + part for part in joined(f"({self.tube.no},@p_now,{','.join(row)})" for row in rows)]

    def _address(self, place: int, entry: Entry) -> str:
        if self._marked:
            return f"CONCAT({self._ms},'-',{self._seq}+{place})"
        return self._names.get(place) or literal(entry.address)

    def _rank(self, rank: Rank, place: int) -> str:
        newest = f"-CAST({self._last}+{place - first_pk(self.tube)} AS SIGNED)" if rank.newest else ""
        return f"{rank.base!r}{'+@p_now' if rank.clock else ''}{newest}"


class Flush:
    """A Delta as a packet: builds its statements and reads their answers."""

    def __init__(self, delta: Delta, moment: str) -> None:
        self._delta = delta
        self._tube = delta.tube
        self._base = first_pk(delta.tube)
        self._moment = moment
        self._per_utube = delta.tube.kind.per_utube
        self._classes = RowClasses(delta.rows)
        new = [(delta.tube, delta.fresh), *delta.works]
        self._new = [NewTasks(tube, entries, place) for place, (tube, entries) in enumerate(new) if entries]

    def statements(self) -> list[str]:
        """Return the packet without its COMMIT. It takes locks in the order that engine.port requires."""
        delta, tube, fresh = self._delta, self._tube, self._delta.fresh
        counts = "".join(f",@p_n{number}=0" for number in range(len(self._classes.weights)))
        statements = [f"SET @p_t={tube.no},@p_now={self._moment},@p_k={getrandbits(62)},@p_got=0,@p_gained=0{counts}"]
        if not fresh:  # new tasks are refused anyway if the tube is gone
            statements.append(fill(Q.require_tube, tube=tube.no))
        for new in sorted(self._new, key=lambda new: new.tube.no):
            statements += new.reserve()
        if fresh and tube.capacity is not None:
            exempt = sum(len(entries) for other, entries in delta.works if other.no == tube.no)
            exempt += sum(row.after.state == "-" for row in delta.rows)
            statements += [fill(Q.stored, tube=tube.no), require(f"@p_stored <= {tube.capacity + exempt}")]
        for group in delta.groups:
            statements += [fill(Q.change_group, **group_values(group)), require("ROW_COUNT() = 1")]
        if delta.rows:
            statements += self._rows()
        for new in self._new:
            statements += new.store()
        addresses = [entry.address for entry in fresh if entry.address is not None]
        if addresses and tube.kind.leased:  # callers that already wait still get the outcome of the previous task
            statements.append(fill(Q.supersede, tube=tube.no, texts=addresses, most=SUPERSEDED_MS))
        if delta.erase_upto is not None:
            statements.append(fill(Q.erase, low=self._base, high=self._base | delta.erase_upto))
        return statements

    def read(self, results: list[Rows]) -> Flushed:
        """Read the answers to the packet into the result of the flush."""
        flushed, rows = Flushed(), self._delta.rows
        if rows:
            found = [] if self._delta.all_or_nothing else results.pop(0)
            ((got, gained),) = results.pop(0)
            changed = {row.before.id for row in rows} if int(got) == len(rows) else {int(id) for (id,) in found}
            flushed.note_rows(self._delta, changed, int(gained) if self._per_utube else None)
        for new in self._new:
            flushed.note_new(self._delta, new.tube, new.entries, *new.records(results.pop(0)[0]))
        return flushed

    def _rows(self) -> list[str]:
        rows, pks, tube = self._delta.rows, self._pks, self._tube
        moved = [row for row in rows if self._moves(row)]
        queues = Counter(row.before.utube or NO_UTUBE for row in moved)
        statements: list[str] = []
        if moved:
            statements += _enter_queues(tube, "waiting", dict.fromkeys(queues, 0), overtaking=True)
        changes = zip(map(self._change, rows, self._classes.of_rows), rows, strict=True)
        for (number, state, new), alike in _grouped(changes).items():
            ids = pks(alike)
            guard = Raw(f"k.pk IN {literal(ids)} AND {state} AND {_unchanged(alike, ids)}")
            if self._moves(alike[0]):
                before, after = alike[0].before.state, alike[0].after.state
                taken, waits = (after == "t") - (before == "t"), int(after == "r")
                statements.append(fill(Q.move_in_queues, guard=guard, taken=taken, waits=waits))
            statements.append(fill(Q.change_rows, guard=guard, new=Raw(new)))
            statements.append(fill(Q.count_changed, count=Raw(f"@p_n{number}")))
        if self._delta.all_or_nothing:
            statements.append(require(f"@p_got = {len(rows)}"))
        statements += self._outcomes() + self._counters()
        if not self._delta.all_or_nothing:
            statements.append(fill(Q.show_changed, ids=pks(rows), all=len(rows)))
        if gone := [row for row in rows if row.after.state == "-"]:
            statements.append(fill(Q.delete_gone, ids=pks(gone)))
        if moved:
            statements += [Q.forget_empty_queues, *_make_heads(tube, queues)]
        return [*statements, "SELECT @p_got,@p_gained"]

    def _pks(self, rows: Iterable[Row]) -> list[int]:
        return [self._base | row.before.id for row in rows]

    def _moves(self, row: Row) -> bool:
        """Return whether the change concerns the task's micro-queue."""
        return self._per_utube and (row.before.state in "rqt" or row.after.state in "rt")

    def _change(self, row: Row, number: int) -> tuple[int, str, str]:
        """Return the class of a change, and as SQL the condition on the task's state and its new values. One statement
        makes all changes for which these are equal, so values that may differ between tasks are left out or written as
        expressions."""
        before, after = row.before, row.after
        until = "k.at" if row.until == before.at else literal(row.until)
        states = "'r','q'" if before.state in "rq" else f"'{before.state}'"
        state = f"k.state IN ({states}) AND IFNULL({until},{NEVER}) > @p_now"
        if before.errors is None:
            state += " AND k.errors IS NULL"
        if after.state == "-":  # only marked first, and removed later, so that no index changes twice
            return number, state, ""
        stored = QUEUED if self._per_utube and after.state == "r" else after.state
        new = f",k.state='{stored}',k.attempts={after.attempts},k.owner={after.owner or 0}"
        new += f",k.progress={literal(after.progress)}"
        if after.reason != before.reason:
            new += f",k.reason={literal(after.reason)}"
        if row.error:
            new += f",k.errors={literal(after.errors)}"
        if after.expires != before.expires:
            new += f",k.expires={literal(after.expires)},k.at={_moment(after.at)}"
        else:
            new += f",k.at={f'IFNULL(k.expires,{NEVER})' if after.at == after.expires else _moment(after.at)}"
        rewritten = after.payload is not before.payload
        if rewritten:
            new += f",k.rank1={after.rank1!r},k.pri={after.pri},k.created={after.created}"
            new += f",k.data={literal(after.payload)}"
        if rewritten or self._tube.fair:
            new += f",k.rank2={0 if self._tube.fair else after.rank2!r}"
        return number, state, new

    def _outcomes(self) -> list[str]:
        ended = [
            (astuple(row.ending), row)
            for row in self._delta.rows
            if self._tube.kind.leased and row.after.state == "-" and row.ending
            and kept_under(row.before.address, row.ending) is not None
        ]  # fmt: skip
        values = {"retention": self._tube.retention}
        return [
            fill(Q.keep_outcomes, ids=self._pks(rows), ending=Raw(",".join(map(literal, ending))), **values)
            for ending, rows in _grouped(ended).items()
        ]

    def _counters(self) -> list[str]:
        """Return the statement that adds the weights of each class of rows to the counters, for those that changed."""
        weights = self._classes.weights
        names = [name for name in COUNTED if any(weight[name] for weight in weights)]
        sums = {name: "+".join(f"{weight[name]}*@p_n{no}" for no, weight in enumerate(weights)) for name in names}
        return [add_counts(self._tube.no, sums)] if sums else []


def _moment(at: int | None) -> int:
    return NEVER if at is None else at


def _unchanged(rows: Sequence[Row], pks: Sequence[int]) -> str:
    """Return the condition that tasks have the same lease, deadline and first rank as before."""
    columns = f"k.lease,IFNULL(k.at,{NEVER}),k.rank1"
    known = [(row.before.lease, _moment(row.before.at), row.before.rank1) for row in rows]
    if known.count(known[0]) == len(known):
        return f"({columns}) = {literal(known[0])}"
    return f"(k.pk,{columns}) IN {literal([(pk, *values) for pk, values in zip(pks, known, strict=True)])}"

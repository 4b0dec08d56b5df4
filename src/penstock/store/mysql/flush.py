"""A Delta as one packet: every guard, every row and every counter of it in one transaction and one round trip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import getrandbits

import msgspec
from msgspec.structs import astuple

from penstock.core.ending import SUPERSEDED_MS
from penstock.core.results import STATE_COUNTER
from penstock.core.task import NO_UTUBE
from penstock.engine.port import Delta, Flushed, GroupRow, Row
from penstock.store.mysql import queues
from penstock.store.mysql.pool import Answer, Prepared, Statement
from penstock.store.mysql.puts import NewTasks
from penstock.store.mysql.queries import COUNTED, NEVER, Q, counter
from penstock.store.mysql.wire import Raw, fill, literal
from penstock.store.sql.step import first_pk

_encode = msgspec.json.Encoder().encode
# Bytes of one statement's list: longer ones are several statements, so that packets can be divided between them.
_MOST = 2**18
# Outcomes forgotten with each new one.
_SWEPT_PER_OUTCOME = 2


def new_call() -> int:
    """The number of a call, by which the rows that it changed are known."""
    return getrandbits(62) + 1


def abort_unless(condition: str) -> str:
    """End the packet where a condition does not hold."""
    return fill(Q.abort, {"condition": Raw(condition)})


def listed(rows: Sequence[object]) -> str:
    """Rows for JSON_TABLE."""
    return _encode(rows).decode()


def old_outcomes(tube: int, new: int) -> list[Statement]:
    """Forget some that are past their retention."""
    return [
        fill(Q.old_outcomes, {"tube": tube, "limit": _SWEPT_PER_OUTCOME * new}),
        Prepared(Q.forget_old_outcomes),
    ]


class Flush:
    """One Delta on its way: its statements, and what their answers mean."""

    def __init__(self, delta: Delta, moment: str) -> None:
        self._delta = delta
        self._tube = delta.tube
        self._base = first_pk(delta.tube)
        self._moment = moment
        self._laned = delta.tube.kind.per_utube
        self._gone = [row for row in delta.rows if row.after.state == "-"]
        self._kept = [row for row in delta.rows if row.after.state != "-"]
        self._classes: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._members = Counter[int]()
        new = [(delta.tube, delta.fresh), *delta.works]
        self._new = [NewTasks(tube, entries, place) for place, (tube, entries) in enumerate(new) if entries]

    def statements(self) -> list[Statement]:
        """The packet but for its end. Locks are taken in the order that engine.port has."""
        delta, tube = self._delta, self._tube
        statements: list[Statement] = [
            f"SET @p_t={tube.no},@p_now={self._moment},@p_k={new_call()},@p_got=0,@p_moved=0",
            fill(Q.share_tube, {"tube": tube.no}),
            abort_unless("@p_live = 1"),
        ]
        for new in sorted(self._new, key=lambda new: new.tube.no):
            statements += new.reserve()
        if delta.fresh and tube.capacity is not None:
            beside = sum(len(entries) for other, entries in delta.works if other.no == tube.no)
            statements += [
                fill(Q.stored, {"tube": tube.no}),
                abort_unless(f"@p_stored <= {tube.capacity + beside + len(self._gone)}"),
            ]
        for group in delta.groups:
            statements += [_change_group(group), abort_unless("ROW_COUNT() = 1")]
        if delta.rows:
            statements += self._rows()
        for new in self._new:
            statements += new.store()
        statements += self._supersede()
        if delta.erase_upto is not None:
            statements.append(fill(Q.erase, {"low": self._base, "high": self._base | delta.erase_upto}))
        statements.append("SELECT @p_got,@p_moved")
        for new in self._new:
            statements += new.show()
        return statements

    def read(self, answer: Answer) -> Flushed:
        """What the packet did."""
        results, flushed, no = answer.results, Flushed(), self._tube.no
        rows = self._delta.rows
        found = results.pop(0) if rows and not self._delta.whole else []
        ((got, moved),) = results.pop(0)
        if int(got) != len(rows):
            flushed.missed = {row.before.id for row in rows} - {int(id) for (id,) in found}
        if rows and not self._laned:
            changed = [row for row in self._kept if row.before.id not in flushed.missed]
            moved = sum((row.after.state == "r") - (row.before.state == "r") for row in changed)
        if rows:
            flushed.readied[no] = int(moved)
        for new in self._new:
            records, gained = new.records(results)
            flushed.readied[new.tube.no] = flushed.readied.get(new.tube.no, 0) + gained
            if new.entries is self._delta.fresh:
                flushed.fresh = records
            else:
                flushed.works.append((new.tube, records))
        return flushed

    # rows

    def _rows(self) -> list[Statement]:
        kept = listed([self._change(row) for row in self._kept])
        gone = listed([self._guard(row) for row in self._gone])
        moved = [row for row in self._delta.rows if row.before.state in "rqt" or row.after.state in "rt"]
        statements: list[Statement] = [f"SET @p_d={literal(kept)},@p_g={literal(gone)}"]
        laned = self._laned and bool(moved)
        if laned:
            statements += self._lock_queues(moved)
        if self._kept:
            statements += [Prepared(Q.move_changed)] if laned else []
            statements += [Prepared(Q.change_rows), Q.count_marked]
        if self._gone:
            statements += [Prepared(Q.mark_gone), Q.count_marked]
            statements += [Prepared(Q.move_gone)] if laned else []
        if self._delta.whole:
            statements.append(abort_unless(f"@p_got = {len(self._delta.rows)}"))
        statements += self._rewrites()
        statements += self._outcomes()
        statements += self._counters()
        if not self._delta.whole:
            statements.append(fill(Q.found, {"all": len(self._delta.rows)}))
        if self._gone:
            statements.append(Prepared(Q.delete_gone))
        if laned:
            statements += self._heads(moved)
        return statements

    def _guard(self, row: Row) -> tuple[object, ...]:
        before = row.before
        place = (STATE_COUNTER[before.state], STATE_COUNTER[row.after.state], row.events)
        number = self._classes.setdefault(place, len(self._classes))
        self._members[number] += 1
        at = NEVER if before.at is None else before.at
        return (self._base | before.id, before.state, before.lease, at, before.rank1, row.until, number)

    def _change(self, row: Row) -> tuple[object, ...]:
        after = row.after
        state = "q" if self._laned and after.state == "r" else after.state
        rank2 = 0 if self._tube.fair else after.rank2
        return (
            *self._guard(row), state, rank2, after.attempts, after.expires, NEVER if after.at is None else after.at,
            after.owner or 0, after.reason, after.progress,
        )  # fmt: skip

    def _lock_queues(self, moved: list[Row]) -> list[Statement]:
        """Lock the micro-queues touched; those that get a ready task are made where they are missing."""
        entered = {row.before.utube or NO_UTUBE: 0 for row in moved if row.after.state == "r"}
        statements: list[Statement] = [queues.setting(self._tube, queues.labels(row.before.utube for row in moved))]
        if entered:
            statements.append(queues.enter(self._tube, entered))
        if len(entered) < len({row.before.utube or NO_UTUBE for row in moved}):
            statements.append(Prepared(Q.lock_queues))
        return statements

    def _heads(self, moved: list[Row]) -> list[Statement]:
        most = max(Counter(row.before.utube or NO_UTUBE for row in moved).values())
        overtaking = self._tube.utube_limit > 1 or any(
            row.after.state == "r" and row.before.state != "t" for row in moved
        )
        return [
            *queues.make_heads(self._tube, most, overtaking=overtaking),
            Prepared(Q.forget_empty_queues),
            "SET @p_moved=@p_gained",
        ]

    def _rewrites(self) -> list[Statement]:
        """Tasks that were put again."""
        rows: list[tuple[object, ...]] = []
        for row in self._kept:
            after = row.after
            if after.payload is not row.before.payload:
                place = (self._base | after.id, after.rank1, after.pri, after.lease, after.created, after.taken or 0)
                rows.append((*place, after.payload.hex()))
        return [fill(Q.rewrite, {"rows": listed(part)}) for part in _parts(rows)]

    def _outcomes(self) -> list[Statement]:
        ended: list[tuple[object, ...]] = []
        for row in self._gone:
            if row.ending is not None and row.before.address is not None and self._tube.kind.leased:
                status, result, error, code = astuple(row.ending)
                digits = None if result is None else result.hex()
                ended.append((self._base | row.before.id, status, digits, error, code))
        if not ended:
            return []
        retention = self._tube.retention
        kept: list[Statement] = [
            fill(Q.outcomes_of, {"outcomes": listed(part), "retention": retention}) for part in _parts(ended)
        ]
        return old_outcomes(self._tube.no, len(ended)) + kept

    def _counters(self) -> list[Statement]:
        """Each class of rows has its weights; what was left out is not counted."""
        weights: list[Counter[str]] = []
        for before, after, events in self._classes:
            weight = Counter[str](event for event in events if event != "put")
            weight[before] -= 1
            weight[after] += 1
            weights.append(weight)
        names = [name for name in COUNTED if any(weight[name] for weight in weights)]
        if not names:
            return []
        everything = len(self._delta.rows)
        columns = Raw(",".join(counter(name) for name in names))
        sums = [sum(weight[name] * self._members[place] for place, weight in enumerate(weights)) for name in names]
        values: dict[str, object] = {"columns": columns, "all": everything, "sums": Raw(",".join(map(str, sums)))}
        statements: list[Statement] = [fill(Q.count_all, values)]
        if not self._delta.whole:
            chosen = [f"SUM(ELT(f.c+1,{','.join(str(weight[name]) for weight in weights)}))" for name in names]
            statements.append(fill(Q.count_found, {**values, "sums": Raw(",".join(chosen))}))
        return statements

    def _supersede(self) -> list[Statement]:
        """Outcomes of addresses that are put again are kept for those who wait already, and no longer."""
        addresses = [entry.address for entry in self._delta.fresh if entry.address is not None]
        if not (addresses and self._tube.kind.leased):
            return []
        return [fill(Q.supersede, {"tube": self._tube.no, "texts": addresses, "most": SUPERSEDED_MS})]


def _change_group(row: GroupRow) -> str:
    before, after = row.before, row.after
    fields = {"state": "state", "end": "end_work", "cancel": "cancel_work", "moving": "moving", "until": "until"}
    values: dict[str, object] = {
        column: getattr(after, field) if getattr(after, field) != getattr(before, field) else Raw(column)
        for field, column in fields.items()
    }
    values |= {"no": before.no, "was": before.state, "had": before.left, "exact": int(row.exact)}
    values |= {"total": after.total - before.total, "remaining": after.left - before.left}
    return fill(Q.change_group, values)


def _parts(rows: list[tuple[object, ...]]) -> list[list[tuple[object, ...]]]:
    """Rows with long texts, as many together as a statement should have."""
    parts: list[list[tuple[object, ...]]] = []
    size = _MOST
    for row in rows:
        length = sum(len(value) for value in row if isinstance(value, str))
        if not parts or size + length > _MOST:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += length
    return parts

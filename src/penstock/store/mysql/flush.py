"""A Delta as one packet: every guard, every row and every counter of it in one transaction and one round trip."""

from __future__ import annotations

from collections import Counter
from random import getrandbits

import msgspec
from msgspec.structs import astuple

from penstock.core.ending import SUPERSEDED_MS, kept_under
from penstock.core.lifecycle import UNDONE
from penstock.core.results import STATE_COUNTER
from penstock.core.task import NO_UTUBE
from penstock.engine.port import Delta, Flushed, GroupRow, Row
from penstock.store.mysql import queues
from penstock.store.mysql.connection import Answer
from penstock.store.mysql.puts import NewTasks
from penstock.store.mysql.queries import COUNTED, NEVER, Q, counter
from penstock.store.mysql.wire import Raw, fill, listed, literal
from penstock.store.sql.step import first_pk

# Old outcomes removed with each new one.
_SWEPT_PER_OUTCOME = 2


def require(condition: str) -> str:
    """End the packet if a condition does not hold."""
    return fill(Q.require, condition=Raw(condition))


def forget_old_outcomes(new: int) -> list[str]:
    """Remove some that are past their retention, for so many new ones."""
    return [fill(Q.old_outcomes, limit=_SWEPT_PER_OUTCOME * new), Q.forget_old_outcomes]


class Flush:
    """One Delta: its statements, and what their answers mean."""

    def __init__(self, delta: Delta, moment: str) -> None:
        self._delta = delta
        self._tube = delta.tube
        self._base = first_pk(delta.tube)
        self._moment = moment
        self._laned = delta.tube.kind.per_utube
        self._classes: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._members = Counter[int]()
        new = [(delta.tube, delta.fresh), *delta.works]
        self._new = [NewTasks(tube, entries, place) for place, (tube, entries) in enumerate(new) if entries]

    def statements(self) -> list[str]:
        """The packet without its COMMIT. Locks are taken in the order that engine.port demands."""
        delta, tube = self._delta, self._tube
        rows = msgspec.json.encode([self._row(row) for row in delta.rows]).decode()
        statements = [
            f"SET @p_t={tube.no},@p_now={self._moment},@p_k={getrandbits(62)},@p_got=0,@p_moved=0,@p_d={literal(rows)}",
            fill(Q.require_tube, tube=tube.no),
        ]
        for new in sorted(self._new, key=lambda new: new.tube.no):
            statements += new.reserve()
        if delta.fresh and tube.capacity is not None:
            beside = sum(len(entries) for other, entries in delta.works if other.no == tube.no)
            beside += sum(row.after.state == "-" for row in delta.rows)
            statements += [fill(Q.stored, tube=tube.no), require(f"@p_stored <= {tube.capacity + beside}")]
        for group in delta.groups:
            statements += [_change_group(group), require("ROW_COUNT() = 1")]
        if delta.rows:
            statements += self._rows()
        for new in self._new:
            statements += new.store()
        addresses = [entry.address for entry in delta.fresh if entry.address is not None]
        if addresses and tube.kind.leased:  # those who wait already still learn the outcome of the task before
            statements.append(fill(Q.supersede, tube=tube.no, texts=addresses, most=SUPERSEDED_MS))
        if delta.erase_upto is not None:
            statements.append(fill(Q.erase, low=self._base, high=self._base | delta.erase_upto))
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
            changed = [row for row in rows if row.before.id not in flushed.missed and row.after.state != "-"]
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

    def _row(self, row: Row) -> tuple[object, ...]:
        """A row of the fragment `changed`. Rows with the same effect on the counters are one class."""
        before, after = row.before, row.after
        place = (STATE_COUNTER[before.state], STATE_COUNTER[after.state], row.events)
        number = self._classes.setdefault(place, len(self._classes))
        self._members[number] += 1
        return (
            self._base | before.id, before.state, before.lease, NEVER if before.at is None else before.at, before.rank1,
            row.until, number, "q" if self._laned and after.state == "r" else after.state,
            0 if self._tube.fair else after.rank2, after.attempts, after.expires,
            NEVER if after.at is None else after.at, after.owner or 0, after.reason, after.progress,
            (after.errors or b"").hex() if row.error else None, int(before.errors is not None),
        )  # fmt: skip

    def _rows(self) -> list[str]:
        rows, whole = self._delta.rows, self._delta.whole
        moved = [row for row in rows if row.before.state in "rqt" or row.after.state in "rt"] if self._laned else []
        statements = [*self._lock_queues(moved), Q.move_in_queues] if moved else []
        statements += [Q.change_rows, Q.count_changed]
        if whole:
            statements.append(require(f"@p_got = {len(rows)}"))
        statements += self._rewrites() + self._outcomes() + self._counters()
        if not whole:
            statements.append(fill(Q.show_found, all=len(rows)))
        if any(row.after.state == "-" for row in rows):
            statements.append(Q.delete_gone)
        return statements + self._heads(moved) if moved else statements

    def _lock_queues(self, moved: list[Row]) -> list[str]:
        """Lock the micro-queues touched, and create those that get a ready task and are missing."""
        names = {row.before.utube or NO_UTUBE for row in moved}
        entered = {row.before.utube or NO_UTUBE: 0 for row in moved if row.after.state == "r"}
        statements = [queues.setting(self._tube, queues.labels(names))]
        statements += [queues.enter(self._tube, entered)] if entered else []
        return statements + ([Q.lock_queues] if len(entered) < len(names) else [])

    def _heads(self, moved: list[Row]) -> list[str]:
        most = max(Counter(row.before.utube or NO_UTUBE for row in moved).values())
        entered = any(row.after.state == "r" and row.before.state != "t" for row in moved)
        heads = queues.make_heads(self._tube, most, overtaking=self._tube.utube_limit > 1 or entered)
        return [*heads, Q.forget_empty_queues, "SET @p_moved=@p_gained"]

    def _rewrites(self) -> list[str]:
        """Tasks that were put again."""
        rows = []
        for row in self._delta.rows:
            after = row.after
            if after.state != "-" and after.payload is not row.before.payload:
                place = (self._base | after.id, after.rank1, after.pri, after.lease, after.created, after.taken or 0)
                rows.append((*place, after.payload.hex()))
        return [fill(Q.rewrite, rows=part) for part in listed(rows)]

    def _outcomes(self) -> list[str]:
        ended: list[tuple[object, ...]] = []
        for row in self._delta.rows if self._tube.kind.leased else ():
            if row.after.state == "-" and row.ending and kept_under(row.before.address, row.ending) is not None:
                status, result, error, code, _ = astuple(row.ending)
                digits = None if result is None else result.hex()
                ended.append((self._base | row.before.id, status, digits, error, code))
        kept = [fill(Q.keep_outcomes, outcomes=part, retention=self._tube.retention) for part in listed(ended)]
        return forget_old_outcomes(len(ended)) + kept if ended else []

    def _counters(self) -> list[str]:
        """Each class of rows has its weights; rows that were left out are not counted."""
        weights: list[Counter[str]] = []
        for before, after, events in self._classes:
            weight = Counter[str](event for event in events if event not in ("put", UNDONE))
            weight["take"] -= events.count(UNDONE)
            weight[before] -= 1
            weight[after] += 1
            weights.append(weight)
        names = [name for name in COUNTED if any(weight[name] for weight in weights)]
        if not names:
            return []
        columns = Raw(",".join(counter(name) for name in names))
        sums = [sum(weight[name] * self._members[place] for place, weight in enumerate(weights)) for name in names]
        values = {"columns": columns, "all": len(self._delta.rows)}
        statements = [fill(Q.count_all, sums=Raw(",".join(map(str, sums))), **values)]
        if not self._delta.whole:
            chosen = [f"SUM(ELT(f.c+1,{','.join(str(weight[name]) for weight in weights)}))" for name in names]
            statements.append(fill(Q.count_found, sums=Raw(",".join(chosen)), **values))
        return statements


def _change_group(row: GroupRow) -> str:
    before, after = row.before, row.after
    fields = {"state": "state", "end": "end_work", "cancel": "cancel_work", "moving": "moving", "until": "until"}
    fields["on_failure"] = "on_failure"
    values = {
        column: getattr(after, field) if getattr(after, field) != getattr(before, field) else Raw(column)
        for field, column in fields.items()
    }
    numbers = {"total": after.total - before.total, "remaining": after.left - before.left, "had": before.left}
    numbers["failed"] = after.failed - before.failed
    return fill(Q.change_group, no=before.no, was=before.state, exact=int(row.exact), **numbers, **values)

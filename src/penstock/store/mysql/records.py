"""Tasks on their way: entries as SQL, rows as records, and what a step did, derived by core's own rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from pymysql.converters import escape_string

from penstock.core import lifecycle
from penstock.core.group import CANCELLING, OPEN, gate
from penstock.core.lifecycle import Change, Move
from penstock.core.options import Tube
from penstock.core.task import Entry, Rank, Record
from penstock.store.base import Effects, Event, altered
from penstock.store.mysql.wire import Rows

_decode = msgspec.json.Decoder(list).decode
# How a task's row begins that has yet to arrive in its micro-queue.
ARRIVING = "n"
NEVER = str(2**53 - 1)
TIME = "(TIMESTAMPDIFF(MICROSECOND, DATE'1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"
# The id that the statement before gave, which found its tube there: an INSERT that changed a row counts as two.
GIVEN_ID = "IF(ROW_COUNT()=2,LAST_INSERT_ID(),NULL)"
# In the JSON of a task its data would stand here.
_DATA = 17
_COLUMNS = "tube, id, state, rank1, rank2, pri, utube, created, expires, at, ttr, max_attempts, callback, data"
INSERT = f"INSERT INTO penstock_task ({_COLUMNS}) VALUES "


def make_record(record: str, data: bytes) -> Record:
    """A task from the two columns of penstock_record."""
    fields = _decode(record)
    return Record(*fields[:_DATA], data, *fields[_DATA:])  # type: ignore[call-arg]


def shown(rows: Rows, what: str) -> list[tuple[int, Record]]:
    """The tasks that penstock_show answered under that name, each with its number, in their order."""
    return [(int(number), make_record(record, data)) for name, number, record, data in rows if name == what]


# putting


def row(tube: Tube, place: int, entry: Entry) -> str:
    """The VALUES of the task at that place of a put, counted from 1; its id and moment are the server's to give."""
    state = "~" if entry.delay else ARRIVING if tube.kind.per_utube else "r"
    expires = "NULL" if entry.ttl is None else f"@penstock_now+{entry.ttl + entry.delay}"
    at = f"@penstock_now+{entry.delay}" if entry.delay else _moment(expires)
    return (
        f"({tube.no},@penstock_id+{place},'{state}',{_rank(entry.rank1, place)},{_rank(entry.rank2, place)},"
        f"{entry.pri},{text(entry.utube)},@penstock_now,{expires},{at},{number(entry.ttr)},{number(entry.max_attempts)},"
        f"{text(entry.callback)},X'{entry.payload.hex()}')"
    )


def _rank(rank: Rank, place: int) -> str:
    clock = "+@penstock_now" if rank.clock else ""
    newest = f"-@penstock_id-{place}" if rank.newest else ""
    return f"{rank.base!r}{clock}{newest}"


def _moment(expires: str) -> str:
    """The column `at` of a task that waits for its ttl, if it has one."""
    return NEVER if expires == "NULL" else expires


def number(value: int | None) -> str:
    """A number as SQL."""
    return "NULL" if value is None else str(value)


def text(value: str | None) -> str:
    """A text as SQL."""
    return "NULL" if value is None else f"'{escape_string(value)}'"


def adopted_row(tube: Tube, record: Record) -> str:
    """The VALUES of a task that comes from elsewhere."""
    at = NEVER if record.at is None else str(record.at)
    return (
        f"({tube.no},{record.id},'{record.state}',{record.rank1!r},{record.rank2!r},{record.pri},{text(record.utube)},"
        f"{record.attempts},{record.lease},{record.created},{record.taken or 0},{number(record.expires)},{at},"
        f"{number(record.ttr)},{number(record.max_attempts)},{text(record.reason)},{text(record.callback)},"
        f"X'{record.payload.hex()}',{text(record.address)},{text(record.reply_to)},{text(record.group)},"
        f"{number(record.group_no)})"
    )


def stored(tube: Tube, id: int, entry: Entry, now: int, seen: tuple[str, float] | None) -> Record:
    """The task as `row` stored it; `seen` is its state and rank where its micro-queue decided them."""
    state, rank2 = seen or ("~" if entry.delay else "r", entry.rank2.value(id, now))
    expires = None if entry.ttl is None else now + entry.ttl + entry.delay
    at = now + entry.delay if entry.delay else expires
    return Record(
        id, state, entry.rank1.value(id, now), rank2, entry.pri, entry.utube, 0, 0, now, None, expires, at, entry.ttr,
        entry.max_attempts, None, None, entry.callback, entry.payload,
    )  # fmt: skip


# what a step did


def expired(record: Record, now: int) -> bool:
    """Past its ttl, and so gone for everybody; a taken one lives until it comes back."""
    return record.state != "t" and record.expires is not None and record.expires <= now


# What sweeps do to tasks: by core's rules, and to remove them.
_SWEEPS = frozenset({"due", "release", "kick"})
_REMOVALS = frozenset({"delete", "lapse", "cancel"})
# How penstock_settle says that the state of a task's group decided.
_GROUPS = {"gone": CANCELLING, "unstarted": OPEN}


def _change(what: str, group: str, record: Record, now: int) -> Change:
    """What a sweep of that name makes of a task whose group, if any, is in that state."""
    if what in _REMOVALS:
        late = group != CANCELLING and expired(record, now)
        return lifecycle.became_due(record, now) if late else lifecycle.removed(record, "delete")
    if what == "release":
        change = lifecycle.came_back(record, now, "release")
    elif what == "kick":
        change = lifecycle.kicked(record)
    else:
        change = lifecycle.became_due(record, now)
    return gate(record, change, group) if group else change


class Report:
    """Gathers the Effects of a step from the rows that its procedures answered."""

    def __init__(self) -> None:
        self.effects = Effects()

    def swept(self, rows: Iterable[tuple[str, int, str, bytes]], now: int) -> list[tuple[Change, Record]]:
        """What sweeps did to tasks, and the tasks afterwards; what was gone with its group is not among them."""
        done: list[tuple[Change, Record]] = []
        for name, tube, record, data in rows:
            what, _, group = name.partition("/")
            if what == "ready":
                self.readied(tube, int(record))
            elif what == "group":
                self.effects.ended.append(("group", tube, int(record)))
            elif what == "work":
                self.effects.events.append(Event(tube, "put", make_record(record, data)))
            elif what in _SWEEPS or what in _REMOVALS:
                before = make_record(record, data)
                change = _change(what, group, before, now)
                after = self.tell(tube, before, change)
                if group != CANCELLING:
                    done.append((change, after))
        return done

    def readied(self, tube: int, by: int) -> None:
        """So many tasks became takeable."""
        if by > 0:
            self.effects.readied[tube] = self.effects.readied.get(tube, 0) + by

    def tell(self, tube: int, before: Record, change: Change) -> Record:
        """A task was changed; as it is afterwards, where a micro-queue's r may also be q."""
        after = altered(before, change, change.state)
        self.effects.events += [Event(tube, event, after) for event in change.events]
        if after.state == "-":
            self.effects.removed[tube] = self.effects.removed.get(tube, 0) + 1
            if before.address is not None:
                self.effects.ended.append(("task", tube, before.id))
        return after

    def settled(self, tube: int, moves: Sequence[Move], rows: Rows, now: int) -> list[Record | None]:
        """What moves did to the tasks that were found, one after the other."""
        named = any(move.name is not None for move in moves)
        found = {record.address if named else record.id: record for _, record in shown(rows, "settle")}
        groups = {id: _GROUPS[what] for what, id, _, _ in rows if what in _GROUPS}
        return [self._settled(tube, move, found, groups.get(move.id, ""), now) for move in moves]

    def _settled(
        self, tube: int, move: Move, found: dict[int | str | None, Record], group: str, now: int
    ) -> Record | None:
        record = found.get(move.shown)
        if record is None:
            return None
        late = group == CANCELLING or expired(record, now)
        change = _change("lapse", group, record, now) if late else lifecycle.decide(record, move, now)
        if change is None:
            return None
        if group == OPEN:
            change = gate(record, change, group)
        after = self.tell(tube, record, change)
        if after.state == "-":
            del found[move.shown]
        else:
            found[move.shown] = after
        return None if late else after

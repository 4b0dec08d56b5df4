"""The engine's step on Redis: one script reads tasks, another writes what the engine decided.

The scripts maintain indexes, counters and outcomes, as they do for puts, takes and advance. Nothing is locked between
two scripts: a row whose task has changed in between is left out, and the engine reads it again.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.ending import KEEP_EXPIRY, kept_under
from penstock.core.group import Group
from penstock.core.kind import DELIVER
from penstock.core.lease import call_of
from penstock.core.lifecycle import Move, became_due, came_back, expired, lost
from penstock.core.options import Tube
from penstock.core.refusals import tube_full
from penstock.core.results import Effects, Event
from penstock.core.select import Deliveries, Find, Holders
from penstock.core.stored_shard import Shard
from penstock.core.task import Entry, Record
from penstock.core.transfer import StoredOutcome, TubeCounters
from penstock.engine import port
from penstock.engine.port import Acked, ByIds, Conflict, Delta, Flushed, GroupRow, Loaded, Post, Row, Select, Step
from penstock.engine.work import Work
from penstock.errors import StoreCorrupt
from penstock.store.redis import puts
from penstock.store.redis.encoding import (
    GROUP_LETTERS,
    MAX_ID,
    ON_FAILURE,
    decode,
    encode,
    read_group,
    read_groups,
    read_outcome,
    sortable,
    task_id,
    task_key,
    unreadable,
)
from penstock.store.redis.outbox import Outbox, pack_post
from penstock.store.redis.redis_connection import Argument, Reply
from penstock.store.redis.script_runner import PAGE, ScriptRunner

log = logging.getLogger("penstock")
_encode = msgspec.msgpack.Encoder().encode
# The largest number of tasks ahead that is reported.
_AHEAD_LIMIT = 1000
# The stored states of a public status.
_STATES = {None: b"rqt~g!", "r": b"rq", "~": b"~g"}
_ON_FAILURE = {policy: letter for letter, policy in ON_FAILURE.items()}
# A group as scripts return it: number, record, end work, cancel work, 1 if its tasks must still follow it.
StoredGroup = list[Any]
# What a script leaves to the engine: its time, tasks, their groups, (id, session) of tasks whose session has ended, and
# groups whose tasks must follow them.
Left = tuple[int, list[Any], list[StoredGroup], Sequence[int], Sequence[int]]
# The position of `removed` in an answer of a script that changes tasks; it is -1 if the script refused.
_REMOVED = 2
# Answers of a put: the tube is full; addresses are in use.
_FULL, _CONFLICT = -1, -2


class RedisStep:
    """Reads and writes of one call on a stored tube."""

    posts = True
    __slots__ = ("_holders", "_now", "_outbox", "_runner", "_taken", "_tube", "_write")

    def __init__(self, runner: ScriptRunner, outbox: Outbox, tube: Tube, write: bool) -> None:
        self._runner = runner
        self._outbox = outbox
        self._tube = tube
        self._write = write
        self._now: int | None = None
        self._taken: list[int] = []
        self._holders: Loaded | None = None  # tasks that have the addresses that a put wanted

    @property
    def now(self) -> int:
        """The server's clock when tasks were last read; before that, an estimate that is some milliseconds off."""
        if self._now is None:
            self._now = self._runner.guess_now(self._tube)
        return self._now

    def __enter__(self) -> Step:
        return cast(Step, self)

    def __exit__(self, *error: object) -> None:
        """Do nothing: a step holds no lock."""

    # reads

    def load(self, tube: Tube, select: Select) -> Loaded:
        """See `Step.load`. A step that writes has tasks buried that cannot be read."""
        match select:
            case ByIds(ids):
                return self._read(tube, "tasks", *(task_key(id) for id in ids if 0 < id <= MAX_ID))
            case port.ByNames(names):
                found, self._holders = self._holders, None
                return found or self._read(tube, "addresses", *names)
            case port.Buried(limit):
                return self._read(tube, "buried", 0, limit) if limit else Loaded([], {})
            case Deliveries(start, limit, delivered):
                if not delivered and tube.kind.hand_out == DELIVER:
                    return self._undelivered(tube, select)
                return self._read(tube, "delivered" if delivered else "ready", start, limit)
            case port.Members(group, limit, unstarted):
                lead, letter = task_key(group), b"u" if unstarted else b"m"
                return self._read(tube, "members", b"[" + lead + letter, b"(" + lead + bytes([letter[0] + 1]), limit)
            case Find("t", after, limit) if tube.kind.leased:
                held = self._pages(tube, self._taken_ids(tube, after), limit)
                return Loaded(list(islice((record for record in held if record.state == "t"), limit)), {})
            case port.Page(after, limit, None):
                return Loaded(self._page(tube, after, limit), {})
            case port.Page(_, limit, upto):  # any tasks up to that id
                keys: set[bytes] = set()  # a scan may return a field twice
                for key, _ in self._runner.scan(tube, "tasks"):
                    keys |= {key} if task_id(key) <= (upto or MAX_ID) else set()
                    if len(keys) == limit:
                        break
                return self._read(tube, "tasks", *sorted(keys))
            case Find(status, after, limit):
                return Loaded(self._find(tube, _STATES.get(status, (status or "").encode()), after, limit), {})
            case Holders(utube, limit):
                held = (record for record in self._pages(tube, self._taken_ids(tube, 0)) if record.utube == utube)
                return Loaded(sorted(held, key=lambda record: (record.taken or 0, record.id))[:limit], {})
            case _:
                raise NotImplementedError(select)

    def _undelivered(self, tube: Tube, wanted: Deliveries) -> Loaded:
        """Messages that were not handed out; if none of them was removed, their places follow from their ids."""
        handed, counters = self._handed(tube), self.counters(tube)
        ready = counters.counts.ready
        start = wanted.start + ready if wanted.start < 0 else wanted.start
        if start < 0:
            return Loaded([], {})
        skip = start if ready == counters.last_id - handed else 0
        return Loaded(self._find(tube, b"r", handed + skip, wanted.limit + start - skip)[start - skip :], {})

    def _handed(self, tube: Tube) -> int:
        """The id up to which all messages of a reliable tube were handed out or removed."""
        return int(self._runner.command(tube.no, "meta", b"HGET", b"handed") or 0)

    def _find(self, tube: Tube, states: bytes, after: int, limit: int) -> list[Record]:
        """Readable tasks in these states above an id. Tries the next ids, then all or, if few exist, existing ones."""
        found, begin, name = list[Record](), min(after, MAX_ID - limit) + 1, self._runner.keys.name
        ids, meta, tasks = range(begin, begin + limit), name(tube.no, "meta"), name(tube.no, "tasks")
        commands = (meta, (b"HGET", meta, b"last")), (tasks, (b"HMGET", tasks, *map(task_key, ids)))
        last, nearest = self._runner.servers.command_all(commands)
        if last is None:
            raise self._runner.missing(tube)

        def values() -> Iterator[tuple[int, bytes | None]]:
            yield from zip(ids, nearest, strict=True)
            rest: Sequence[int] = range(after + limit + 1, int(last) + 1)
            if len(rest) > PAGE and len(rest) > 4 * self._runner.command(tube.no, "tasks", b"HLEN"):
                rest = [id for id in self._runner.all_ids(tube) if id > after + limit]
            yield from self._values(tube, "tasks", rest)

        for id, value in values():
            with suppress(StoreCorrupt):
                record = decode(id, value) if value and value[:1] in states else None
                found += [record] if record and not expired(record, self.now) else []
            if len(found) >= limit:
                break
        return self._with_errors(tube, found[:limit])

    def _page(self, tube: Tube, after: int, limit: int) -> list[Record]:
        """A page of tasks for a transfer. Unreadable ones are buried with their bytes, or left out if unleased."""
        found = (_salvaged(tube, id, value) for id, value in self._in_order(tube, "tasks", after, limit))
        return self._with_errors(tube, list(islice((record for record in found if record is not None), limit)))

    def outcomes(self, tube: Tube, after: int, limit: int) -> list[StoredOutcome]:
        """See `Step.outcomes`."""
        return [read_outcome(*pair) for pair in islice(self._in_order(tube, "outcomes", after, limit), limit)]

    def _in_order(self, tube: Tube, part: str, after: int, limit: int) -> Iterator[tuple[int, bytes]]:
        """Tasks or outcomes above an id, in id order, read `limit` at a time, without those removed since. Redis has no
        such order, so the ids are listed once for all pages, at eight bytes each."""
        listed, which = self._runner.listed, (tube.no, part)
        if after == 0 or which not in listed:
            listed[which] = array("Q", self._runner.all_ids(tube, part))
        ids = listed[which]
        yield from self._values(tube, part, memoryview(ids)[bisect_right(ids, after) :], limit)
        listed.pop(which, None)

    def _values(self, tube: Tube, part: str, ids: Sequence[int], size: int = PAGE) -> Iterator[tuple[int, bytes]]:
        """What a hash has of these ids, read `size` at a time."""
        for start in range(0, len(ids), size):
            some = ids[start : start + size]
            values = self._runner.command(tube.no, part, b"HMGET", *map(task_key, some))
            yield from ((id, value) for id, value in zip(some, values, strict=True) if value is not None)

    def _pages(self, tube: Tube, ids: Sequence[int], size: int = PAGE) -> Iterator[Record]:
        for start in range(0, len(ids), size):
            yield from self.load(tube, ByIds(ids[start : start + size])).records

    def _taken_ids(self, tube: Tube, after: int) -> list[int]:
        """The ids above `after` of the tasks that were taken when this step first asked."""
        if not self._taken:
            self._taken = sorted(map(task_id, self._runner.command(tube.no, "taken", b"ZRANGE", 0, -1)))
        return [id for id in self._taken if id > after]

    def _read(self, tube: Tube, *words: Argument) -> Loaded:
        self._now, tasks, groups = self._runner.on_tube("read_tasks", tube, *words, idempotent=True)
        return self._loaded(tube, tasks, groups) or self._read(tube, *words)

    def _loaded(self, tube: Tube, tasks: list[Any], groups: Sequence[StoredGroup]) -> Loaded | None:
        """Decode what a script read; a task whose group is lost is treated as in no group. Returns None if the tube had
        to be repaired: then read again."""
        records, broken, found = list[Record](), False, {group.no: group for group in map(_read_group, groups)}
        for id, value in zip(tasks[::2], tasks[1::2], strict=True):
            try:
                record = decode(id, value)
            except StoreCorrupt:
                if not self._write:
                    raise
                broken = True
            else:
                lost = record.group_no is not None and record.group_no not in found
                records.append(replace(record, group=None, group_no=None) if lost else record)
        if broken and tube.kind.leased:
            self._write = False  # so that a failed repair is not repeated
            self._runner.on_unreadable(tube)
            return None
        return Loaded(self._with_errors(tube, records), found)

    def leased_by(self, lost: port.LostTake) -> list[list[Record]]:
        """See `Step.leased_by`."""
        found: list[list[Record]] = []
        for tube in lost.tubes:
            session = self._runner.command(tube.no, "handles", b"HGET", lost.handle) or b"-1"
            held = self._runner.command(tube.no, "taken", b"ZRANGEBYSCORE", session, session)
            records = self._pages(tube, list(map(task_id, held)))
            found.append([record for record in records if call_of(record.lease) == lost.call])
        return found

    def _with_errors(self, tube: Tube, records: list[Record]) -> list[Record]:
        flagged = [place for place, record in enumerate(records) if record.errors is not None]
        if flagged:
            keys = [task_key(records[place].id) for place in flagged]
            found = self._runner.command(tube.no, "errors", b"HMGET", *keys)
            for place, errors in zip(flagged, found, strict=True):
                records[place] = replace(records[place], errors=errors or b"")
        return records

    def counters(self, tube: Tube) -> TubeCounters:
        """See `Step.counters`."""
        return self._runner.read_counters([tube], frozen=True)[0]

    def ahead(self, tube: Tube, record: Record) -> int:
        """See `Step.ahead`."""
        if tube.kind.hand_out == DELIVER:
            return min(max(0, record.id - self._handed(tube) - 1), _AHEAD_LIMIT)
        key, rank = self._runner.keys.name(tube.no, "ready"), repr(float(record.rank1))
        like = (b"ZRANGEBYSCORE", key, rank, rank, b"LIMIT", 0, _AHEAD_LIMIT)
        before, alike = self._runner.servers.command_all([(key, (b"ZCOUNT", key, b"-inf", f"({rank}")), (key, like)])
        name = (sortable(record.rank2) if "2" in self._runner.shape(tube).letters else b"") + task_key(record.id)
        return min(int(before) + bisect_left(alike, name), _AHEAD_LIMIT)

    # changes

    def flush(self, delta: Delta) -> Flushed:
        """See `Step.flush`. Replies to other tubes are put afterwards."""
        rows, results = delta.rows, list[bytes]()
        packed = _encode([_packed(row, results, leased=delta.tube.kind.leased) for row in rows])
        flushed, missed = self._apply(delta, packed, results)
        flushed.missed = {rows[place - 1].before.id for place in missed}
        return flushed

    def rewrite(self, tube: Tube, records: Sequence[Record]) -> None:
        """Write tasks again as they are: this restores their entries in indexes, and chooses heads of micro-queues."""
        rows = [(*_packed(Row(record, record), [], leased=tube.kind.leased)[:-1], 0) for record in records]
        for start in range(0, len(rows), PAGE):
            self._apply(Delta(tube), _encode(rows[start : start + PAGE]), [])

    def _apply(self, delta: Delta, rows: bytes, results: list[bytes]) -> tuple[Flushed, list[int]]:
        """Write a Delta with packed rows. Also returns the places of rows that were left out."""
        tube, effects = delta.tube, Effects()
        works = [entry for _, entries in delta.works for entry in entries]
        posts = delta.posts
        if isinstance(tube, Shard):  # work of the tube itself may belong to another shard
            posts = [*posts, *(Post(tube.name, entry.payload, None) for entry in works)]
            works = []
        groups = _encode([_packed_group(row, results) for row in delta.groups])
        posted = _encode([(post.tube, _place(pack_post(post), results)) for post in posts])
        words: list[Argument] = [rows, groups, posted, int(delta.all_or_nothing), tube.retention, len(results)]
        words += results
        entries = [*delta.fresh, *works]
        if entries:
            words += [len(works), *puts.pack_put(tube, entries)]
        reply = self._runner.on_tube("apply_put" if delta.fresh else "apply", tube, *words)
        if reply[_REMOVED] == -1:
            raise Conflict if reply[3] < 0 else tube_full(tube, reply[3], len(delta.fresh))
        missed, first, outbox, *mark = self._runner.read_changes(tube, reply, effects)
        records = puts.stored_records(tube, entries, first, reply[0], mark)
        self._outbox.deliver(tube.no, outbox, effects)
        fresh, own = records[: len(delta.fresh)], records[len(delta.fresh) :]
        return Flushed(fresh=fresh, works=[(tube, own)] if own else [], effects=effects), missed

    def add(self, tube: Tube, entries: Sequence[Entry], effects: Effects, *, related: bool) -> list[Record]:
        """Store new tasks that are in no group; `related`: with addresses or reply tubes. Raises Conflict if an address
        is in use; the next load by addresses then returns what the script has read."""
        self._now, first, answer, *rest = self._runner.on_tube(
            "put_related" if related else "put", tube, *puts.pack_put(tube, entries)
        )
        if first == _CONFLICT:
            self._holders = self._loaded(tube, answer, rest[0])
            raise Conflict
        if first == _FULL:
            raise tube_full(tube, answer, len(entries))
        records = puts.stored_records(tube, entries, first, self.now, rest)
        no, shown = tube.public_no, tube.shown
        effects.events += [Event(no, "put", shown(record)) for record in records]
        effects.readied |= {no: answer} if answer else {}
        return records

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, newest: str | None = None,
        after: str | None = None, above: int | None = None, limit: int = 1000,
    ) -> list[Group]:  # fmt: skip
        """See `Step.groups`. A listing reads all groups."""
        for words in ((no,), ("live", name), ("newest", newest)):
            if words[-1] is not None:
                return self._find_group(tube, *cast("tuple[Argument, ...]", words))
        groups = read_groups(self._runner.read_part(tube, "groups")).values()
        if above is not None:
            unended = [group for group in groups if group.no > above and group.state not in rules.OVER]
            return sorted(unended, key=lambda group: group.no)[:limit]
        live = {group.name: group for group in groups if group.state in rules.LIVE and group.name > (after or "")}
        return [live[name] for name in sorted(live)[:limit]]

    def open_group(self, tube: Tube, name: str) -> Group:
        """See `Step.open_group`."""
        return self._find_group(tube, "", name, puts.pack_facts(tube))[0]

    def _find_group(self, tube: Tube, *words: Argument) -> list[Group]:
        self._now, *found = self._runner.on_tube("find_group", tube, *words, idempotent=True)
        return [_read_group(found)] if found else []

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        """See `Step.ack`. In unleased kinds, acks every task that can be acked."""
        first, ids = moves[0], [move.id for move in moves]
        lease, session, plain, alike, results = first.lease, first.session, True, True, False
        if not tube.kind.leased:
            return self._ack_delivered(tube, moves) if first.verb == "ack" else Acked(set())
        try:
            keys = b"".join([id.to_bytes(6, "big") for id in ids])
        except OverflowError:  # no task has such an id
            return Acked(set())
        if first.verb == "delete":
            return self._remove(tube, ids, "delete", keys)
        if tube.fair or session is None:
            return Acked(set())
        for move in moves:
            seen = move.seen
            # The script can ack tasks of one session without reply tubes, as far as known from the moves.
            if move.session != session or (seen is not None and seen.reply_to not in (None, KEEP_EXPIRY)):
                return Acked(set())
            plain = plain and seen is not None and seen.address is seen.reply_to is None and seen.group_no is None
            alike = alike and move.lease == lease  # usually one take has leased all of them
            results = results or move.result is not None
        owner = task_key(session)
        held = b"".join([(move.lease or 0).to_bytes(8, "big") + owner for move in (moves[:1] if alike else moves)])
        words = [move.result or b"" for move in moves] if results else ()
        return self._remove(tube, ids, "ack" if plain else "ack_related", keys, held, *words)

    def _remove(self, tube: Tube, ids: list[int], script: str, *words: Argument) -> Acked:
        """Remove tasks by a script that skips those that it leaves to the engine."""
        reply = self._runner.on_tube(script, tube, *words)
        gone, readied = set(ids), reply[1]
        if len(reply) == 2:
            return Acked(gone, readied, final=True)
        missed, tied, kept, broken = reply[2:]
        if broken:
            self._runner.on_unreadable(tube)
        gone.difference_update([ids[place - 1] for place in (*missed, *tied)])
        # A number: the outcomes of all of them are kept.
        ended = ids if isinstance(kept, int) else [ids[place - 1] for place in kept]
        return Acked(gone, readied, ended, final=not tied)

    def _ack_delivered(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        """Ack delivered messages, by their names or ids; no task has the id 0."""
        rows = [
            (
                move.name or (move.id if 0 < move.id <= MAX_ID else 0), "t", None, None, None, move.session, None, None,
                "-", None, None, None, None, "ack",
            )
            for move in moves
        ]  # fmt: skip
        flushed, missed = self._apply(Delta(tube), _encode(rows), [])
        left = {moves[place - 1].shown for place in missed}
        return Acked(cast("set[str]", {move.shown for move in moves} - left), final=True, effects=flushed.effects)

    # deadlines

    def advance(
        self, effects: Effects, limit: int, *, follow: int | None = None, closed: bool = False,
        reply: list[Reply] | None = None,
    ) -> tuple[bool, int]:  # fmt: skip
        """Apply what is due. Returns whether more may be due, and the milliseconds until the next deadline, or -1.

        `follow`: how many tasks follow their group, if not `limit`. `closed`: the sessions that end were closed.
        `reply`: the answer of the script, if it has run already.
        """
        tube = self._tube
        if reply is None:
            reply = self._runner.on_tube("advance_tube", tube, limit, int(closed), idempotent=True)
        more, wait_ms, left, outbox = self._runner.read_changes(tube, reply, effects)
        follows = bool(left) and self._apply_left(left, effects, follow or limit, closed=closed)
        self._outbox.deliver(tube.no, outbox, effects)
        return bool(more) or follows, wait_ms

    def _apply_left(self, left: Left, effects: Effects, limit: int, *, closed: bool) -> bool:
        """Let the engine apply what a script left to it: see left_over in lua/advance.lua. Skips what other callers
        have applied since. Returns whether more may be due."""
        self._now, tasks, groups, held, moving = left
        work = Work(cast(Step, self), self._tube, effects)
        owners = dict(zip(held[::2], held[1::2], strict=True))
        try:
            loaded = self._loaded(self._tube, tasks, groups)
            for record in work.remember(loaded) if loaded else ():
                if record.state == "t" and record.owner == owners.get(record.id, 0):
                    work.change(record, (came_back if closed else lost)(record, self.now, "release"))
                elif record.at is not None and record.at <= self.now:
                    work.change(record, became_due(record, self.now))
                if work.must_flush:
                    work.flush()
            work.flush()
            return work.update_members(list(moving), limit)
        except Conflict:
            return False


def _read_group(stored: StoredGroup) -> Group:
    no, record, end, cancel, moving = stored
    return replace(read_group(no, record), end=end, cancel=cancel, moving=moving == 1)


def _salvaged(tube: Tube, id: int, value: bytes) -> Record | None:
    """A task for a transfer: an unreadable one as buried, or None if its kind has no leases."""
    try:
        return decode(id, value)
    except StoreCorrupt as error:
        log.warning("tube %s: %s", tube.name, error)
        if not tube.kind.leased:
            return None
    return replace(unreadable(id, value, 0), utube="" if tube.kind.per_utube else None)


def _place(value: bytes | None, results: list[bytes]) -> int | None:
    """Append bytes to the results, because scripts cannot unpack them from msgpack. Returns their place, from 1."""
    if value is None:
        return None
    results.append(value)
    return len(results)


def _packed(row: Row, results: list[bytes], *, leased: bool) -> tuple[object, ...]:
    """A row of the script apply.

    The holder of a lease may have touched the task since it was read. So the guard accepts any deadline in the future,
    and a touch is packed as the difference to the old deadline.
    """
    before, after, until = row.before, row.after, row.until
    at: int | bool | None = False if before.at is None else before.at
    if before.state == "t" and before.at is not None and until is not None and until <= before.at:
        at, until = None, None if until == before.at else until
    next_at, progress = after.at, None
    if after.state == "t":
        next_at = (after.at or 0) - (before.at or 0)
        progress = None if after.progress == before.progress else after.progress
    ending = row.ending if leased and kept_under(before.address, row.ending) is not None else None
    rewritten = _place(encode(after), results) if after.payload is not before.payload else None
    state = "r" if before.state == "q" else before.state
    return (
        before.id, state, before.lease, at, before.rank1, None, until,
        None if row.group_state is None else GROUP_LETTERS[row.group_state],
        after.state, next_at, after.expires, after.attempts, after.reason, " ".join(row.events), progress,
        None if ending is None else (ending.status, ending.error, ending.code, _place(ending.result, results)),
        row.error, rewritten,
    )  # fmt: skip


def _packed_group(row: GroupRow, results: list[bytes]) -> tuple[object, ...]:
    """A group row of the script apply."""
    before, after = row.before, row.after
    return (
        before.no, GROUP_LETTERS[before.state], before.left if row.exact else False,
        after.total - before.total, after.left - before.left, after.failed - before.failed,
        GROUP_LETTERS[after.state] if after.state != before.state else None,
        (after.until or 0) if after.until != before.until else None,
        _ON_FAILURE[after.on_failure] if after.on_failure != before.on_failure else None,
        after.moving if after.moving != before.moving else None,
        _place(after.end, results) if after.end != before.end else None,
        _place(after.cancel, results) if after.cancel != before.cancel else None,
    )  # fmt: skip

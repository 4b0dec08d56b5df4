"""The engine's step on Redis: tasks are read by one script, and what was decided about them is written by another.

The scripts keep indexes, counters, outcomes, replies and the counts of groups, as they do for puts, takes and what is
due. Nothing is locked between two of them: a row whose task has changed since is left out, and the engine reads it
again.
"""

from __future__ import annotations

import heapq
import struct
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

import msgspec

from penstock.core import codec
from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.lease import call_of
from penstock.core.lifecycle import Move, expired
from penstock.core.options import Tube
from penstock.core.refusals import partly_applied, tube_full
from penstock.core.results import Effects
from penstock.core.select import Deliveries, Find, Holders
from penstock.core.task import Entry, Record
from penstock.core.transfer import TubeCounters
from penstock.engine import port
from penstock.engine.port import Acked, ByIds, Conflict, Delta, Flushed, Loaded, Row, Select, Step
from penstock.errors import StoreCorrupt
from penstock.store.redis import puts
from penstock.store.redis import redis_queries as queries
from penstock.store.redis.encoding import (
    MAX_ID,
    decode,
    encode,
    read_group,
    sortable,
    task_id,
    task_key,
)
from penstock.store.redis.outbox import Steps
from penstock.store.redis.redis_connection import Argument, Reply
from penstock.store.redis.redis_queries import PAGE
from penstock.store.redis.runner import Runner, read_pairs

_encode = msgspec.msgpack.Encoder().encode
_pack_key = struct.Struct(">HI").pack
# The largest number of tasks ahead that is reported.
_AHEAD_LIMIT = 1000
# The stored states of a public status.
_STATES = {None: "rqt~g!", "r": "rq", "~": "~g"}
# Answers of a put: there is no room; its entries must be decided again.
_FULL, _CONFLICT = -1, -2


class RedisStep:
    """Reads and writes of one call on a stored tube."""

    optimistic = True
    follows_up = True
    __slots__ = ("_done", "_given", "_holders", "_now", "_runner", "_steps", "_taken", "_tube", "_write")

    def __init__(self, runner: Runner, steps: Steps, tube: Tube, write: bool, now: int | None) -> None:
        self._runner = runner
        self._steps = steps
        self._tube = tube
        self._write = write
        self._given = now
        self._now = now
        self._done: list[Row] = []  # what earlier flushes changed
        self._taken: list[int] = []
        self._holders: Loaded | None = None  # of the addresses that a put could not have

    @property
    def now(self) -> int:
        """When tasks were last read; before that a guess, some milliseconds off."""
        if self._now is None:
            self._now = self._runner.guess_now(self._tube)
        return self._now

    def __enter__(self) -> Step:
        return cast(Step, self)

    def __exit__(self, *error: object) -> None:
        """Nothing is held."""

    # looking

    def load(self, tube: Tube, select: Select) -> Loaded:
        """As the port says; where tasks are to be changed, those that cannot be read are buried."""
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
            case port.Taken(after, limit):
                ids = self._taken_ids(tube, after)
                return self._read(tube, "tasks", *map(task_key, sorted(ids)[:limit]))
            case port.Page(_, limit, upto):  # any of them
                keys: set[bytes] = set()  # a scan may return a field twice
                for key, _ in queries.scan(self._runner, tube, "tasks"):
                    keys |= {key} if task_id(key) <= (MAX_ID if upto is None else upto) else set()
                    if len(keys) == limit:
                        break
                return self._read(tube, "tasks", *sorted(keys))
            case Find(status, after, limit):
                return Loaded(self._find(tube, _STATES.get(status, status or ""), after, limit), {})
            case Holders(utube, limit):
                held = [record for record in self._pages(tube, self._taken_ids(tube, 0)) if record.utube == utube]
                return Loaded(heapq.nsmallest(limit, held, key=lambda record: (record.taken or 0, record.id)), {})
            case _:
                raise NotImplementedError(select)

    def _undelivered(self, tube: Tube, wanted: Deliveries) -> Loaded:
        """Messages that were not handed out; if none between them is gone, their ids tell their places."""
        handed, counters = queries.handed(self._runner, tube), self.counters(tube)
        ready = counters.counts.ready
        start = wanted.start + ready if wanted.start < 0 else wanted.start
        if start < 0:
            return Loaded([], {})
        skip = start if ready == counters.last_id - handed else 0
        return Loaded(self._find(tube, "r", handed + skip, wanted.limit + start - skip)[start - skip :], {})

    def _find(self, tube: Tube, states: str, after: int, limit: int) -> list[Record]:
        """Reads all ids one after the other while most of them exist; if few do, lists the existing ids first."""
        records, place = list[Record](), after
        while len(records) < limit and place < MAX_ID:
            words = (states, place, limit - len(records), PAGE)
            reply = self._runner.on_tube("find_tasks", tube, *words, idempotent=True, now=self._given)
            _, place, last, stored = cast("list[int]", reply[:4])
            records += self._with_errors(tube, read_pairs(reply[4:]))
            left = last - place
            if left <= 0 or not stored:
                break
            if left > 4 * stored + PAGE:
                ids = sorted(id for id in queries.all_ids(self._runner, tube) if id > place)
                more = (
                    record for record in self._pages(tube, ids)
                    if record.state in states and not expired(record, self.now)
                )  # fmt: skip
                return records + list(islice(more, limit - len(records)))
        return records

    def _pages(self, tube: Tube, ids: Sequence[int]) -> Iterator[Record]:
        for start in range(0, len(ids), PAGE):
            yield from self.load(tube, ByIds(ids[start : start + PAGE])).records

    def _taken_ids(self, tube: Tube, after: int) -> list[int]:
        """The taken tasks above an id, of those that were taken when this step began."""
        if not self._taken:
            found = cast("list[bytes]", self._runner.command(tube.no, "taken", b"ZRANGE", 0, -1))
            self._taken = [task_id(member) for member in found]
        return [id for id in self._taken if id > after]

    def _read(self, tube: Tube, *words: Argument) -> Loaded:
        with partly_applied(self._done):
            reply = self._runner.on_tube("read_tasks", tube, *words, idempotent=True, now=self._given)
        now, tasks, groups = cast("tuple[int, list[int | bytes], list[bytes]]", tuple(reply))
        self._now = now
        records: list[Record] = []
        broken: list[tuple[object, ...]] = []
        for place in range(0, len(tasks), 2):
            id = cast(int, tasks[place])
            try:
                records.append(decode(id, cast(bytes, tasks[place + 1])))
            except StoreCorrupt:
                if not self._write:
                    raise
                broken.append((id,))
        if broken and tube.kind.leased:  # the script buries what it cannot read
            self._steps.run("apply", tube, Effects(), _encode(broken), now=self._given)
            return self._read(tube, *words)
        return self._with_groups(tube, records, groups)

    def _loaded(self, tube: Tube, tasks: Reply, groups: Reply) -> Loaded:
        return self._with_groups(tube, read_pairs(cast("list[Reply]", tasks)), cast("list[bytes]", groups))

    def _with_groups(self, tube: Tube, records: list[Record], groups: Sequence[bytes]) -> Loaded:
        pairs = zip(cast("Sequence[int]", groups[::2]), groups[1::2], strict=True)
        return Loaded(self._with_errors(tube, records), {no: read_group(no, stored) for no, stored in pairs})

    def leased_by(self, tube: Tube, handle: str, call: int) -> list[Record]:
        """What a take call of a handle has leased."""
        session = cast("bytes | None", self._runner.command(tube.no, "handles", b"HGET", handle))
        if session is None:
            return []
        held = self._runner.command(tube.no, "taken", b"ZRANGEBYSCORE", session, session)
        ids = [task_id(member) for member in cast("list[bytes]", held)]
        return [record for record in self._pages(tube, ids) if call_of(record.lease) == call]

    def _with_errors(self, tube: Tube, records: list[Record]) -> list[Record]:
        return queries.with_errors(self._runner, [(tube, record.id, record) for record in records])

    def counters(self, tube: Tube) -> TubeCounters:
        """As the port says."""
        return queries.read_counters(self._runner, [tube], frozen=True)[0]

    def ahead(self, tube: Tube, record: Record) -> int:
        """As the port says."""
        if tube.kind.hand_out == DELIVER:
            return min(max(0, record.id - queries.handed(self._runner, tube) - 1), _AHEAD_LIMIT)
        key, rank = self._runner.keys.name(tube.no, "ready"), repr(float(record.rank1))
        like = (b"ZRANGEBYSCORE", key, rank, rank, b"LIMIT", 0, _AHEAD_LIMIT)
        before, alike = self._runner.servers.command_all([(key, (b"ZCOUNT", key, b"-inf", f"({rank}")), (key, like)])
        name = (sortable(record.rank2) if "2" in self._runner.shape(tube).letters else b"") + task_key(record.id)
        return min(cast(int, before) + bisect_left(cast("list[bytes]", alike), name), _AHEAD_LIMIT)

    # changes

    def flush(self, delta: Delta) -> Flushed:
        """As the port says; a Delta has rows and new tasks here, and the scripts count in groups."""
        rows, tube = delta.rows, delta.tube
        if delta.fresh and not rows:
            records, readied = self.add(tube, delta.fresh)
            return Flushed(fresh=records, readied={tube.no: readied})
        if not rows:
            return Flushed()
        results: list[bytes] = []
        packed = _encode([_packed(row, results) for row in rows])
        if any(row.ending is not None for row in rows) and tube.kind.leased:
            self._runner.keep_outcomes(tube, puts.pack_facts(tube))
        with partly_applied(self._done):
            if delta.fresh:
                return self._apply_put(delta, packed, results)
            effects, missed = self._apply(tube, packed, results)
        left_out = {rows[place - 1].before.id for place in missed}
        done = [row for row in rows if row.before.id not in left_out] if missed else rows
        self._done += done
        return Flushed(left_out, beside=_without(effects, tube, sum([row.after.state == "-" for row in done])))

    def _apply(self, tube: Tube, packed: bytes, results: Sequence[bytes]) -> tuple[Effects, list[int]]:
        """What was done beside the rows, and the places of rows that were left out."""
        effects = Effects()
        _, rest = self._steps.run("apply", tube, effects, packed, len(results), *results, now=self._given)
        return effects, cast("list[int]", rest[0])

    def _apply_put(self, delta: Delta, packed: bytes, results: Sequence[bytes]) -> Flushed:
        """Write rows and new tasks, or nothing."""
        effects, tube = Effects(), delta.tube
        words = packed, len(results), *results, *puts.pack_put(tube, delta.fresh)[0]
        answer, rest = self._steps.attempt("apply_put", tube, effects, *words, now=self._given)
        if answer is None:
            total = cast(int, rest[0])
            raise Conflict if total < 0 else tube_full(tube, total, len(delta.fresh))
        records = puts.stored_records(tube, delta.fresh, cast(int, rest[1]), self.now, ())
        return Flushed(fresh=records, beside=_without(effects, tube, sum(row.after.state == "-" for row in delta.rows)))

    def add(self, tube: Tube, entries: Sequence[Entry], *, guessed: bool = False) -> tuple[list[Record], int]:
        """Store new tasks; and how many of them can be taken. Conflict if an address is in use or a group has ended.

        `guessed`: nothing was loaded. The tasks that have the addresses then need not be loaded.
        """
        related = tube.kind.hand_out == CLOCK or True in [
            entry.address is not None or entry.reply_to is not None or entry.group is not None for entry in entries
        ]
        words, runs = puts.pack_put(tube, entries, related=related, guessed=guessed)
        reply = self._runner.on_tube("put_related" if related else "put", tube, *words, now=self._given)
        moment, first, answer, *rest = reply
        if first == _CONFLICT:
            self._now, self._holders = cast(int, moment), self._loaded(tube, answer, rest[0])
            raise Conflict
        if first == _FULL:
            raise tube_full(tube, cast(int, answer), len(entries))
        found = puts.joined_entries(entries, runs, cast("list[int]", rest[0]))
        return puts.stored_records(tube, found, cast(int, first), cast(int, moment), rest[1:]), cast(int, answer)

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, newest: str | None = None,
        after: str | None = None, above: int | None = None, limit: int = 1000,
    ) -> list[Group]:  # fmt: skip
        """The group with a number."""
        return find_group(self._runner, tube, cast(int, no), now=self._given)

    def open_group(self, tube: Tube, name: str) -> Group:
        """As the port says."""
        return find_group(self._runner, tube, "", name, puts.pack_facts(tube), "", now=self._given)[0]

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        """As the port says, of all that can be acked; the short script acks those without reply tube."""
        session = moves[0].session
        # What the short script may ack, as far as is known: tasks of one session, without reply tube.
        short = session is not None and tube.kind.leased and not tube.fair
        if not short or False in [
            move.session == session and 0 < move.id <= MAX_ID and ((seen := move.seen) is None or seen.reply_to is None)
            for move in moves
        ]:
            return self._ack_tied(tube, moves)
        keys = b"".join([_pack_key(move.id >> 32, move.id & 0xFFFFFFFF) for move in moves])
        # Mostly one take has leased all of them.
        leases = [moves[0].lease] if len({move.lease for move in moves}) == 1 else [move.lease for move in moves]
        held = b"".join([(lease or 0).to_bytes(8, "big") + task_key(session or 0) for lease in leases])
        results = [move.result or b"" for move in moves]
        results = results if any(results) else []
        reply = self._runner.on_tube("ack", tube, keys, held, *results, now=self._given)
        _, readied, missed, tied, kept, buried = cast(
            "tuple[int, int, list[int], list[int], list[int] | int, int]", tuple(reply)
        )
        if buried:
            self._steps.repair(tube, self._given)
        gone = {move.id for move in moves}
        if missed or tied:
            gone.difference_update([moves[place - 1].id for place in (*missed, *tied)])
        acked = Acked(gone, readied, _kept(moves, kept), judged=True)
        if not tied:
            return acked
        more = self._ack_tied(tube, [moves[place - 1] for place in tied])
        return msgspec.structs.replace(acked, keys=gone | cast("set[int]", more.keys), beside=more.beside)

    def _ack_tied(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        results: list[bytes] = []
        nobody = 0 if tube.kind.leased else None
        rows = [
            (
                _own_id(move) if move.name is None else move.name, "t", move.lease, None, None, move.session or nobody,
                None, "-", None, None, None, None, "ack", None, _ending(Ending("done", move.result), results), 1,
            )
            for move in moves
        ]  # fmt: skip
        effects, missed = self._apply(tube, _encode(rows), results)
        left = {moves[place - 1].shown for place in missed}
        keys = cast("set[int]", {move.shown for move in moves} - left)
        return Acked(keys, judged=True, beside=_without(effects, tube, len(keys)))


def find_group(runner: Runner, tube: Tube, *words: Argument, now: int | None) -> list[Group]:
    """The group that the script finds or opens, if any."""
    _, *found = runner.on_tube("find_group", tube, *words, idempotent=True, now=now)
    return [read_group(*cast("tuple[int, bytes]", tuple(found)))] if len(found) == 2 else []


def _kept(moves: Sequence[Move], kept: list[int] | int) -> Sequence[int]:
    """The ids of tasks whose outcome is kept; a number stands for all of them."""
    return [move.id for move in moves] if isinstance(kept, int) else [moves[place - 1].id for place in kept]


def _own_id(move: Move) -> int:
    return move.id if 0 < move.id <= MAX_ID else 0  # an id that no task has


def _without(effects: Effects, tube: Tube, gone: int) -> Effects:
    """The same without the tasks that the caller counts among the removed."""
    if gone:
        effects.removed[tube.no] -= gone
    return effects


def _packed(row: Row, results: list[bytes]) -> tuple[object, ...]:
    """A row of the script apply.

    The holder of a lease may have touched the task since it was read: any deadline in the future passes, and a
    touch is by how much it is later.
    """
    before, after, until = row.before, row.after, row.until
    at: int | bool | None = False if before.at is None else before.at
    if before.state == "t" and before.at is not None and until is not None and until <= before.at:
        at, until = None, None if until == before.at else until
    next_at, progress = after.at, None
    if after.state == "t":
        next_at = (after.at or 0) - (before.at or 0)
        progress = None if after.progress == before.progress else after.progress
    ending = None if row.ending is None else _ending(row.ending, results)
    rewritten = None
    if after.payload is not before.payload:
        results.append(encode(after))
        rewritten = len(results)
    state = "r" if before.state == "q" else before.state
    return (
        before.id, state, before.lease, at, before.rank1, None, until, after.state, next_at, after.expires,
        after.attempts, after.reason, " ".join(row.events), progress, ending, None, row.error,
        rewritten,
    )  # fmt: skip


def _ending(ending: Ending, results: list[bytes]) -> tuple[object, ...]:
    result, which, base64 = ending.result, None, None
    if result is not None:
        results.append(result)
        which = len(results)
        base64 = b64encode(result[1:]).decode() if codec.is_raw(result) else None
    return ending.status, ending.error, ending.code, which, base64

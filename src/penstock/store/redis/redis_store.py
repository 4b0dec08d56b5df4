"""The store on Redis: one script per call, all keys of a tube in one slot, so the same scripts run on a cluster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import NoReturn, cast
from uuid import uuid4

from msgspec.structs import replace

from penstock.core.address import addresses
from penstock.core.ending import OutcomeLookup
from penstock.core.group import Group
from penstock.core.ids import Mark
from penstock.core.kind import Kind
from penstock.core.options import Tube
from penstock.core.refusals import name_in_use, refuse_busy
from penstock.core.results import (
    ADVANCE_STEP,
    Advanced,
    Blocked,
    Description,
    Effects,
    Event,
    Finding,
    Joined,
    Lease,
    Overdue,
    Presence,
    SessionRecord,
    Settled,
    Stored,
    Taken,
)
from penstock.core.select import Sweep
from penstock.core.shards import shard_of
from penstock.core.stored_shard import public
from penstock.core.task import Entry, Record
from penstock.core.transfer import (
    GroupTotals,
    ImportBatch,
    TubeCounters,
    freeze_refused,
    is_frozen,
    is_importing,
    plain_name,
)
from penstock.engine import port
from penstock.engine.port import Conflict, GroupRow, Step
from penstock.engine.sessions import LostTakes
from penstock.engine.store import Store
from penstock.engine.work import Work, put_linked
from penstock.errors import (
    NoSuchTube,
    OutcomeUnknown,
    SchemaMismatch,
    StoreError,
    TubeBusy,
    TubeFull,
    UnsupportedOption,
)
from penstock.store.redis import durability, puts
from penstock.store.redis.checks import check
from penstock.store.redis.encoding import MAX_ID, encode, pack_outcome, read_groups, read_outcome, task_key
from penstock.store.redis.location import Location, locate
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.redis_connection import Argument, Reply
from penstock.store.redis.redis_step import RedisStep
from penstock.store.redis.registry import Registry
from penstock.store.redis.script_runner import PAGE, TUBES, Keys, ScriptRunner, add_up, read_pairs
from penstock.store.redis.servers import Servers, connect_servers
from penstock.store.redis.subscriber import Subscriber
from penstock.store.redis.tubes import Tubes, by_tube
from penstock.store.sql.migrations import Migration, Schema, must_fit, schema_of
from penstock.system.forks import reset_in_child

log = logging.getLogger("penstock")

# The layout of keys and records. A store with another layout is refused, because it would be misread.
SCHEMA = 14
LAYOUTS = [Migration(SCHEMA, "layout", "")]


# The counters that an imported tube takes over; the first four count removed tasks.
_CALLS = ("ack", "fail", "delete", "ttl", "take", "release", "bury", "kick", "touch", "ttr", "delay")
# What freeze_tube in lua/transfer.lua returns for a tube that was paused or resumed since.
_OTHER_TURN = 3
# How many tasks follow their group in one take: some 3 ms. More would delay the taker, which does not need them.
_FOLLOW_STEP = 200

# The arguments of a take: handle, count, highest first rank or '', blocked or '', number of the call.
Wanted = tuple[str, int, int | str, str, int]


class RedisStore(Store):
    """Implements `engine.store.Store` on one Redis or Valkey server, or on a cluster."""

    shared = True
    remote = True
    remove_step = PAGE
    # What a pool replaces; and its `_open` replaces the tubes and the outbox.
    _connect: Callable[[Location], Servers] = staticmethod(connect_servers)
    _runner_type: type[ScriptRunner] = ScriptRunner
    _warnings: Callable[[durability.Settings], list[str]] = staticmethod(durability.warnings)

    def __init__(self, where: Location, clock: Callable[[], int] | None = None) -> None:
        self._servers = self._connect(where)
        self._keys = Keys(where.prefix)
        self._closed = False
        try:
            nodes = durability.read_settings(self._servers)
            modern = all(durability.is_modern(settings) for settings in nodes.values())
            self._runner = self._runner_type(self._servers, self._keys, clock, modern=modern)
            self._tubes = Tubes(self._runner)
            self._outbox = Outbox(self._runner, self._tubes)
            self.identity = self._open()
        except BaseException:
            self._servers.close()
            raise
        for node, settings in nodes.items():
            for warning in self._warnings(settings):
                log.warning("%s: %s", " ".join(dict.fromkeys((self._servers.label, node))), warning)
        self._runner.on_unreadable = self._repair_unreadable
        self.lost = LostTakes()
        self._registry = Registry(self._runner, self._tubes)
        self._subscriber = Subscriber(self._servers, self._keys.channel)
        reset_in_child(self)

    def _open(self) -> str:
        """Read or create the store's id. Raises SchemaMismatch for another schema, or for the index of a pool."""
        id, schema, pool = self._runner.on_tag("open_store", TUBES, str(uuid4()), SCHEMA, idempotent=True)
        if pool is not None:
            raise SchemaMismatch(
                f"{self._servers.label} prefix {self._keys.prefix} is the index of a pool: connect with pool=, the URL "
                "of its database, or choose another prefix"
            )
        place = f"{self._servers.label} prefix {self._keys.prefix}"
        must_fit(place, int(schema), LAYOUTS, new="prefix (?prefix=…)")
        return f"redis:{id.decode()}"

    def step(self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1) -> RedisStep:
        """A step on one stored tube; it has the methods of `Step` that this store uses."""
        return RedisStep(self._runner, self._outbox, tubes[0], write)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._subscriber.close()
            self._servers.close()

    def after_fork(self) -> None:
        """Open new connections in the child, and leave the parent's alone."""
        self._servers.after_fork()
        self._subscriber.reset()

    def bind(self, connection: object) -> NoReturn:
        raise UnsupportedOption("redis has no transactions to bind to: sqlite://, postgresql:// and mysql:// have")

    def describe(self) -> Description:
        return durability.describe(
            durability.read_settings(self._servers), self._servers.label, self._keys.prefix, SCHEMA
        )

    def now(self) -> int:
        return self._runner.now(TUBES)

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        return self._subscriber.wait(wake, seconds, watch=watch)

    # tubes

    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        return self._tubes.save(name, kind, given, exist_ok=exist_ok)

    def load_tubes(self, names: Sequence[str] | None = None, *, frozen: bool = False) -> list[Tube]:
        if frozen:
            return self._tubes.frozen()
        if names is None:
            return self._tubes.all()
        return [tube for tube in map(self._tubes.find, names) if tube is not None]

    def drop_tube(self, tube: Tube) -> Effects:
        effects = Effects()
        self._apply_all_due(None, tube, effects)
        replies = self._drop(tube)
        self._tubes.forget(tube)
        if replies:
            self._outbox.drain(tube.no, effects)
        return effects

    def _drop(self, tube: Tube, *, anyhow: bool = False) -> bool:
        """Remove a stored tube, a busy one only if `anyhow`. Returns whether its tasks have yet to reply."""
        reply = self._runner.on_tag("drop_tube", tube.no, self._runner.moment(), tube.name, int(anyhow))
        _, taken, waiting, replies = self._runner.known(tube, reply)
        if not anyhow:
            refuse_busy(tube, taken=taken, waiting=waiting)
        return bool(replies)

    def _alter(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        altered = self._tubes.alter(tube, changes)
        for part in self._tubes.shards(altered):  # update the options that scripts read
            if self._runner.command(part.no, "meta", b"HEXISTS", b"facts"):
                self._runner.command(part.no, "meta", b"HSET", b"facts", puts.pack_facts(part))
        return altered

    def _repair_queues(self, tube: Tube) -> None:
        self._check_tube(tube, True)

    def _pause(self, tube: Tube, paused: bool) -> int:
        """Pause or resume a tube, and unfreeze shards that an interrupted move has frozen. Returns the tube's turn: how
        often it was paused or resumed."""
        first, *others = self._tubes.shards(tube)
        turn: int = self._runner.on_tube("pause_tube", first, int(paused), idempotent=True)[1]
        for shard in others:
            self._runner.on_tag("unfreeze_tube", shard.no, turn, idempotent=True)
            self._runner.on_tube("pause_tube", shard, int(paused), idempotent=True)
        return turn

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry]) -> Stored:
        """See `Store.put`. `plain_put` is faster for a single plain task."""
        effects, named = Effects(), addresses(entries)
        replies = True in [entry.reply_to is not None for entry in entries]
        grouped = True in [entry.group is not None for entry in entries]
        if replies:
            self._outbox.register(tube)

        def put(step: Step, guess: bool) -> list[Record]:
            if guess and not grouped and len(set(named)) == len(named):
                with suppress(Conflict):
                    return cast(RedisStep, step).add(tube, entries, effects, related=replies or bool(named))
            return put_linked(Work(step, tube, effects), entries, guess=guess and grouped)

        try:
            return Stored(self._run(put, (tube,)), effects)
        except TubeFull:
            self._subscriber.interests.add(tube.no)
            raise

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        return puts.plain_put(self._runner, tube, entry)

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, waiter: int = 0,
    ) -> Taken:  # fmt: skip
        call = port.new_call()
        if blocked == "register":  # before the take, because the next put sends a single notification
            self._subscriber.interests.update(tube.no for tube in tubes)
        effects = Effects()
        if self.lost:
            self._undo_lost(effects, again=False)
        try:
            wanted = handle, count, "" if max_pri is None else max_pri, blocked or "", call
            return self._take(tubes, wanted, effects)
        except OutcomeUnknown:
            leased = [tube for tube in tubes if tube.kind.leased]
            self.lost[call] = port.LostTake(leased, handle, call)
            raise

    def _take(self, tubes: Sequence[Tube], wanted: Wanted, effects: Effects) -> Taken:
        """Take from the first tube that has work."""
        waits: list[int] = []
        for place, tube in enumerate(tubes):
            alive, wait_ms, pairs = self._run_take(tube, wanted, effects)
            waits += [wait_ms] if wait_ms >= 0 else []
            if not alive:
                return Taken(None, [], None, False, effects)
            if pairs:
                self._unregister_others(tubes, place, wanted, effects)
                return Taken(tube, read_pairs(pairs), min(waits, default=None), True, effects)
        if self._outbox.deliver_overdue(effects):
            waits.append(0)  # take again: a reply may be what the caller waits for
        return Taken(None, [], min(waits, default=None), True, effects)

    def _run_take(self, tube: Tube, wanted: Wanted, effects: Effects) -> tuple[int, int, list[Reply]]:
        """Run the take script; if something is due, apply that first. Repairs the tube if tasks could not be read."""
        handle, count, top, blocked, call = wanted
        forced, registered = 0, tuple[int, ...]()
        while True:
            words = handle, count, top, blocked, call, forced, *registered
            rest = self._runner.read_changes(tube, self._runner.on_tube("take", tube, *words), effects)
            alive, wait_ms, pairs, due, broken = rest
            if broken:
                self._runner.on_unreadable(tube)
            if due:
                self.step((tube,)).advance(effects, ADVANCE_STEP, follow=_FOLLOW_STEP)
                forced = 1
            elif not (alive or registered) and (found := self._registry.enlist(handle, tube)):
                registered = found  # the session is alive, but the tube did not know the handle
            elif alive and broken and not pairs:
                # Tasks behind those that were buried may be ready. The blocked call is registered already.
                blocked = "unregister_if_found" if blocked in ("register", "unregister_if_found") else ""
            else:
                return alive, wait_ms, pairs

    def _unregister_others(self, tubes: Sequence[Tube], found: int, wanted: Wanted, effects: Effects) -> None:
        """Unregister the caller from the tubes that registered it as waiting, after another tube had work."""
        (handle, _, _, blocked, _), others = wanted, list[Tube]()
        if blocked in ("register", "unregister_if_found"):
            others += tubes[:found]
        if blocked in ("unregister", "unregister_if_found"):
            others += tubes[found + 1 :]
        for tube in others:
            with suppress(StoreError):  # the caller must get its tasks; it stays registered until its next take or end
                self._run_take(tube, (handle, 0, "", "unregister", 0), effects)

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP) -> Advanced:
        more, waits, effects, parts = False, list[int](), Effects(), self._tubes.shards(tube)
        self._outbox.deliver_overdue(effects)
        for part, reply in zip(parts, self._runner.on_tubes("advance_tube", parts, limit), strict=True):
            due, wait_ms = self.step((part,)).advance(effects, limit, reply=reply)
            more |= due
            waits += [wait_ms] if wait_ms >= 0 else []
        return Advanced(more, min(waits, default=None), effects)

    def overdue(self) -> Overdue:
        return self._tubes.overdue()

    def _apply_all_due(self, step: object, tube: Tube, effects: Effects, *, closed: bool = False) -> None:
        """Apply everything that is due in a stored tube. `closed`: see `RedisStep.advance`."""
        while self.step((tube,)).advance(effects, ADVANCE_STEP, closed=closed)[0]:
            pass

    def _recover(self, tube: Tube, sweep: Sweep) -> Settled:
        effects = Effects()
        reply = self._runner.on_tube("recover", tube, sweep.count or 0, sweep.elapsed)
        records = read_pairs(self._runner.read_changes(tube, reply, effects)[0])
        effects.events += [Event(tube.public_no, "take", tube.shown(record)) for record in records]
        return Settled(list(records), effects)

    # addresses, outcomes and groups

    def outcomes(self, tube: Tube, keys: Sequence[int | str]) -> list[OutcomeLookup]:
        """See `Store.outcomes`. One round trip per key."""
        return [self._find_outcome(tube, key) for key in keys]

    def _find_outcome(self, tube: Tube, key: int | str) -> OutcomeLookup:
        words = (key, b"") if isinstance(key, str) else ("", task_key(key) if 0 < key <= MAX_ID else b"")
        if isinstance(key, int):
            self._subscriber.interests.add(tube.no)  # before a notification can be sent
        _, id, there, stored, last = self._runner.on_tube("find_outcome", tube, *words, idempotent=True)
        if there:
            return OutcomeLookup(tube.public_id(id))
        if stored is None:
            return OutcomeLookup(unknown=isinstance(key, int) and not 0 < key <= last)
        return OutcomeLookup(ending=read_outcome(id, stored).ending, last=tube.public_id(id))

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, after: str = "", limit: int = 100,
    ) -> list[Group]:  # fmt: skip
        if len(self._tubes.shards(tube)) > 1:
            return []
        if no is not None:
            self._subscriber.interests.add(tube.no)  # before a notification can be sent
        return super().groups(tube, no=no, name=name, after=after, limit=limit)

    # sessions

    def join(self, presence: Presence, session: str | None, ttr: int) -> Joined:
        return self._registry.join(presence, session, ttr)

    def beat(self, handles: Sequence[str]) -> set[str]:
        alive = self._registry.beat(handles)
        if self.lost:
            with suppress(StoreError):  # the next call does it
                self._undo_lost(Effects(), again=True)
        return alive

    def leave(self, handles: Sequence[str], *, locus: str | None = None) -> Effects:
        effects = Effects()
        for tube in self._registry.leave(handles, locus):
            with suppress(NoSuchTube):
                self._apply_all_due(None, tube, effects, closed=locus is None)
        return effects

    def sessions(self, no: int | None = None) -> list[SessionRecord]:
        return self._registry.sessions(no)

    # details

    def held(self, session: int, leases: Sequence[Lease]) -> list[bool]:
        parts, held, requests = by_tube(lease.tube for lease in leases), [False] * len(leases), []
        for tube, places in parts:
            words = [word for place in places for word in (task_key(leases[place].id), leases[place].lease)]
            requests.append(self._runner.tube_request("held_leases", tube, session, *words))
        for (_, places), reply in zip(parts, self._servers.run_all(requests), strict=True):
            answers = reply[1] if len(reply) > 1 else [0] * len(places)  # shorter if the tube is gone
            for place, answer in zip(places, answers, strict=True):
                held[place] = bool(answer)
        return held

    def _repair_unreadable(self, tube: Tube) -> None:
        """Bury tasks that cannot be read, and repair what depended on them. The call continues if that fails."""
        log.warning("tube %s has tasks that cannot be read; burying them", tube.name)
        try:
            check(self._runner, self._outbox, tube, True)
        except StoreError as error:
            log.warning("tasks that cannot be read were not buried (%s): run broker.check(repair=True)", error)

    def check(self, repair: bool) -> list[Finding]:
        found = [shown for stored, finding in self._stranded(repair) for shown in public(stored, [finding])]
        found += [found for tube in self._tubes.all() for found in self._check_tube(tube, repair)]
        return found + self._tubes.check(repair)

    def _check_tube(self, tube: Tube, repair: bool) -> list[Finding]:
        return [
            found
            for stored in self._tubes.shards(tube)
            for found in public(stored, check(self._runner, self._outbox, stored, repair))
        ]

    # transfer: a frozen tube keeps its name and its keys, but not `last` of meta, so that no script finds it

    def freeze_tube(self, tube: Tube, to: str) -> None:
        self._freeze(tube, to)

    def _freeze(self, tube: Tube, to: str, turn: int = 0, *, checked: bool = False) -> None:
        """Freeze a stored tube; `checked`: only while that is its turn."""
        reply = self._runner.on_tag("freeze_tube", tube.no, to, turn, int(checked), idempotent=True)
        _, refused = self._runner.known(tube, reply)
        if refused == _OTHER_TURN:
            raise TubeBusy(f"tube {tube.name} was paused or resumed during the move: move it again")
        if refused:
            raise freeze_refused(tube, refused == 1)

    def erase_tube(self, tube: Tube, *, forget: bool = False) -> None:
        for stored in reversed(self._tubes.shards(tube)):
            self._runner.on_tag("erase_tube", stored.no, idempotent=True)
        if forget:
            self._forget(tube)

    def _forget(self, tube: Tube) -> None:
        self._tubes.forget(replace(tube, name=plain_name(tube.name)))
        for stored in self._tubes.shards(tube):
            self._runner.command(stored.no, "meta", b"DEL")

    def _counters(self, tube: Tube, utubes: Sequence[str]) -> TubeCounters:
        """See `Store.counters`. For a sharded tube that is being imported, all shards are complete up to `last_id`."""
        shards = self._tubes.shards(tube)
        found = self._runner.read_counters(shards, frozen=is_frozen(tube))
        ids = [stored.public_id(part.last_id) for stored, part in zip(shards, found, strict=True)]
        last = min(ids) if is_importing(tube.name) else max(ids)
        micro_queues = [self._runner.read_queue(shards[shard_of(utube, len(shards))], utube) for utube in utubes]
        return TubeCounters(last, found[0].mark, add_up(found), found[0].paused, micro_queues)

    def _counters_of(self, tubes: Sequence[Tube]) -> dict[int, TubeCounters]:
        shards = {tube.no: self._tubes.shards(tube) for tube in tubes}
        waits = self._runner.read_waits([part for parts in shards.values() for part in parts])
        live = {no: parts for no, parts in shards.items() if all(part.no in waits for part in parts)}
        counted = iter(self._runner.read_counters([part for parts in live.values() for part in parts]))
        found: dict[int, TubeCounters] = {}
        for no, parts in live.items():
            own, longest = list(islice(counted, len(parts))), max(waits[part.no] for part in parts)
            found[no] = replace(own[0], counts=add_up(own), waits=longest)
        return found

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        """See `Store.import_batch`. Each shard gets its part, and the id up to which everything is imported."""
        shards = self._tubes.shards(tube)
        for stored, part in zip(shards, batch.split(tube, len(shards)), strict=True):
            if any(record.reply_to is not None for record in part.records):
                self._outbox.register(stored)
            words = [word for kept in part.outcomes for word in (b"o" + task_key(kept.id), pack_outcome(kept))]
            for record in part.records:
                words += [b"x" + task_key(record.id), record.errors] if record.errors else []
            head = (puts.pack_facts(stored), part.upto, len(words))
            words += [word for record in part.records for word in (task_key(record.id), encode(record))]
            self._runner.on_tube("import", stored, *head, *words, idempotent=True)

    def activate_tube(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        """See `Store.activate_tube`. The first shard of a sharded tube gets the counters."""
        self._activate(tube, name, counters, totals)
        if not self._tubes.name(tube.name, replace(tube, name=name), counters.last_id if tube.shards > 1 else 0):
            raise name_in_use(name)

    def _activate(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        self._tubes.learn(tube.no, counters.last_id)
        first, *others = self._tubes.shards(replace(tube, name=name))
        for shard in others:
            self._activate_stored(shard, None, (0, 0), {}, {})
        here = add_up(self._runner.read_counters(others)).put if others else 0
        calls = {call: getattr(counters.counts, call) for call in _CALLS}
        # From now on, the other store's counters count the tasks that were removed there.
        calls["skipped"] = -sum(calls[call] for call in _CALLS[:4])
        self._activate_stored(first, counters.last_id - counters.counts.put + here, counters.mark, calls, totals)

    def _activate_stored(
        self, stored: Tube, unput: int | None, mark: Mark, calls: Mapping[str, int], totals: GroupTotals
    ) -> None:
        """Take over the counters of an imported tube, only once: `landed` of its meta."""
        meta = self._runner.read_part(stored, "meta")
        if b"landed" in meta:
            return
        groups = read_groups(self._runner.read_part(stored, "groups"))
        rows = [
            GroupRow(groups[no], replace(groups[no], total=total, failed=failed))
            for no, (total, failed) in totals.items()
            if no in groups
        ]
        if rows:
            self.step((stored,)).flush(port.Delta(stored, groups=rows))
        own = {name: int(meta.get(name.encode(), 0)) for name in ("skipped", "ms", "seq", *calls)}
        ms, seq = max((own["ms"], own["seq"]), mark)
        fields: dict[str, Argument] = {name: own[name] + by for name, by in calls.items()}
        fields |= {"landed": 1, "unput": own["skipped"] if unput is None else unput, "ms": ms, "seq": seq}
        fields |= {"facts": puts.pack_facts(stored)} if b"facts" in meta else {}
        self._runner.command(stored.no, "meta", b"HSET", *(word for pair in fields.items() for word in pair))


def look_at_redis(url: str) -> Schema:
    """Read the schema of a store without changing the store."""
    where = locate(url)
    with closing(connect_servers(where)) as servers:
        key = Keys(where.prefix).name(TUBES, "store")
        found = servers.command(key, b"HGET", key, b"schema")
    stored = None if found is None else int(found)
    must_fit(f"{servers.label} prefix {where.prefix}", stored, LAYOUTS, new="prefix (?prefix=…)")
    return schema_of(stored, LAYOUTS)

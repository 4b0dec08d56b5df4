"""Each fast path of a store has the same effect as the engine's general path.

The same calls run on two stores, one of which puts, acks and deletes only by flush. Afterwards both have the same
tasks, counters, outcomes, groups and micro-queues.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count, takewhile
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from penstock.core.ending import KEEP_EXPIRY
from penstock.core.entry import make_entry
from penstock.core.kind import find_kind
from penstock.core.lifecycle import Move
from penstock.core.options import PutOptions, Tube
from penstock.core.results import Effects, Presence
from penstock.core.task import Entry, Record
from penstock.core.transfer import StoredOutcome
from penstock.engine.work import Work
from penstock.store.open import open_store
from penstock.testing import Clock
from tests.servers import running
from tests.servers.vaults import bare_url

# One line here adds a store to the suite.
STORES = ("sqlite", "mariadb", "postgres", "redis")
T = TypeVar("T")
HANDLE = "handle"
UTUBES = ("u", "v", "w")
GROUPS = ("g", "h")
STEPS = 60

# One tube of each sort: kind and options.
TUBES: dict[str, tuple[str, dict[str, object]]] = {
    "fifo": ("fifo", {}),
    "fifottl": ("fifottl", {"ttr": 5.0, "pri": 3, "max_attempts": 3}),
    "utube": ("utube", {}),
    "utube, fair": ("utube", {"fair": True}),
    "utube, fair, two at a time": ("utube", {"fair": True, "utube_limit": 2}),
    "utubettl, two at a time": ("utubettl", {"utube_limit": 2, "ttr": 5.0}),
    "reliable": ("reliable", {}),
}


def new_url(store: str, folder: Path) -> str:
    own = {"sqlite": f"sqlite:///{folder}/{uuid4().hex}.db?durability=relaxed", "memory": f"memory://{uuid4().hex}"}
    return own.get(store) or bare_url(running(store))


class Side:
    """One of the two stores, with a tube and a session. `fast`: it uses the fast paths."""

    def __init__(self, url: str, sort: str, clock: Clock | None, *, fast: bool) -> None:
        opened = open_store(url, clock)
        kind, options = TUBES[sort]
        self.store, self.fast = opened, fast
        self.tube: Tube = opened.save_tube("t", find_kind(kind), options, exist_ok=False)

    def join(self) -> int:
        return self.store.join(Presence(HANDLE, "host", 1, "here"), None, 0).session

    def put(self, entries: Sequence[Entry]) -> list[Record]:
        if self.fast or any(entry.address or entry.group for entry in entries):
            return self.store.put(self.tube, entries).records
        with self.store.step((self.tube,)) as step:
            work = Work(step, self.tube, Effects())
            work.put(entries)
            return work.flush()[1]

    def take(self, count: int) -> list[Record]:
        return self.store.take([self.tube], count, HANDLE).records

    def ack(self, moves: Sequence[Move]) -> object:
        """Returns which tasks were acked, and what follows."""
        settled = self.store.settle(self.tube, moves, brief=self.fast)
        effects = settled.effects
        acked = [record is not None for record in settled.records]
        return acked, effects.removed, effects.readied, sorted(effects.ended)

    def start_groups(self) -> object:
        """Start both groups. Returns whether tasks of them still have to follow."""
        groups = self.store.groups(self.tube)
        started = [self.store.change_group(self.tube, each.no, each.name, to="started") for each in groups]
        return [change is not None and change.more for change in started]

    def stored(self) -> dict[str, object]:
        """Everything that can be observed of the store."""
        assert self.store.check(False) == []
        seen: dict[str, object] = {}
        for tube in self.store.load_tubes():
            groups = (self.store.groups(tube, no=no) for no in count(1))  # without gaps, but on Redis
            newest = (self.store.groups(tube, name=name) for name in GROUPS)
            seen[tube.name] = {
                "tasks": self.store.read_page(tube, Record, 0, 10_000),
                "counters": self.store.counters(tube, (*UTUBES, "")),
                "outcomes": self.store.read_page(tube, StoredOutcome, 0, 10_000),
                "groups": [*takewhile(bool, groups), *newest],
            }
        return seen


class Pair:
    """Makes the same calls on both sides, and compares the answers and the final state."""

    def __init__(self, fast: Side, engine: Side, clock: Clock) -> None:
        self.sides = fast, engine
        self.tube = fast.tube
        self.clock = clock
        self.session = self.both(Side.join)
        self.held: list[Record] = []

    def both(self, call: Callable[[Side], T]) -> T:
        fast, engine = (call(side) for side in self.sides)
        assert fast == engine
        return fast

    def must_agree(self) -> None:
        self.both(Side.stored)

    def put(self, *items: tuple[object, PutOptions]) -> None:
        entries = [make_entry(self.tube, data, options) for data, options in items]
        self.both(lambda side: side.put(entries))
        self.must_agree()

    def take(self, count: int) -> None:
        self.held += self.both(lambda side: side.take(count))
        self.must_agree()

    def ack(self, *moves: Move) -> None:
        self.both(lambda side: side.ack(moves))
        self.must_agree()

    def settle(self, move: Move) -> None:
        """Settle on both sides by a flush."""
        self.both(lambda side: side.store.settle(side.tube, [move]).records)
        self.must_agree()

    def start_groups(self) -> None:
        self.both(Side.start_groups)
        self.must_agree()

    def wait(self, milliseconds: int, *, advance: bool) -> None:
        """Let leases and delays end, but not the session."""
        self.clock.advance(milliseconds / 1000)
        self.both(lambda side: side.store.beat([HANDLE]))
        if advance:
            self.both(lambda side: side.store.advance(side.tube).more)
        self.must_agree()

    def ack_of(self, record: Record, result: bytes | None = None, stale: int = 0) -> Move:
        if not self.tube.kind.leased:
            return Move("ack", 0, name=record.address)
        return Move("ack", record.id, self.session, record.lease - stale, result=result, seen=record)


@pytest.fixture(params=STORES)
def pair_of(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Pair]]:
    monkeypatch.setattr("penstock.engine.port.new_call", lambda: 5)  # on both sides
    with ExitStack() as opened:

        def pair(sort: str, *, own_clock: bool = False) -> Pair:
            """With `own_clock`, the fast side has its own clock, which is that of its server."""
            clock = Clock()
            fast = Side(new_url(request.param, tmp_path), sort, None if own_clock else clock, fast=True)
            engine = Side(new_url(request.param, tmp_path), sort, clock, fast=False)
            for side in (fast, engine):
                opened.callback(side.store.close)
            return Pair(fast, engine, clock)

        yield pair


@pytest.mark.parametrize("sort", TUBES)
def test_a_plain_put(pair_of: Callable[..., Pair], sort: str) -> None:
    """The put reads the store's clock; the other side is given the same time."""
    pair = pair_of(sort, own_clock=True)
    fast, engine = pair.sides
    for data in ("a", "b", "c"):
        entry = make_entry(pair.tube, data, {})
        put = fast.store.plain_put(fast.tube, entry)
        record = None if put is None else put(entry.payload)
        if record is None:  # a store without the fast path, or a kind that needs more
            record = fast.store.put(fast.tube, [entry]).records[0]
        pair.clock.advance((record.created - pair.clock()) / 1000)
        assert engine.put([entry]) == [record]
        pair.must_agree()
        if data == "b":  # the id of a removed newest task is not reused
            pair.settle(Move("delete", record.id, name=record.address))


@pytest.mark.parametrize("sort", TUBES)
def test_one_ack_and_many(pair_of: Callable[..., Pair], sort: str) -> None:
    pair = pair_of(sort)
    for n in range(12):
        pair.put((n, PutOptions(utube=UTUBES[n % 3] if pair.tube.kind.per_utube else None)))
    pair.take(9)
    one, *others = pair.held
    pair.ack(pair.ack_of(one))
    pair.ack(pair.ack_of(one))  # is gone
    pair.ack(*map(pair.ack_of, others), Move("ack", 99, 1, 1, name=None if pair.tube.kind.leased else "1-1"))
    pair.take(9)


@pytest.mark.parametrize("sort", [sort for sort in TUBES if sort != "reliable"])
def test_an_ack_with_an_outcome(pair_of: Callable[..., Pair], sort: str) -> None:
    """Tasks with an address, a reply, a kept expiry, a group with more tasks, and the last of a group: each way."""
    for together in (False, True):
        pair = pair_of(sort)
        pair.put(("plain", {}), ("addressed", {"address": "a"}), ("replying", {"reply_to": "replies"}))
        pair.put(("expiring", {"reply_to": KEEP_EXPIRY}))
        pair.put(*((n, PutOptions(group="g", address=f"g{n}" if n else None)) for n in range(3)))
        pair.start_groups()
        while len(pair.held) < 7:  # one by one, if they are in one micro-queue
            before = len(pair.held)
            pair.take(7)
            moves = [pair.ack_of(record, b'"result"') for record in pair.held[before:]]
            if together:
                pair.ack(*moves)
            else:
                for move in moves:
                    pair.ack(move)
        pair.put(("again", {"address": "a"}))  # its outcome is superseded


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("sort", ["fifottl", "utubettl, two at a time"])
def test_an_ack_just_before_the_lease_ends_and_at_its_end(pair_of: Callable[..., Pair], sort: str, late: bool) -> None:
    pair = pair_of(sort)
    pair.put(("a", {}), ("b", {}), ("c", {}))
    pair.take(1)
    pair.take(1)
    pair.wait(5000 if late else 4999, advance=False)
    pair.ack(pair.ack_of(pair.held[0]))
    pair.ack(*map(pair.ack_of, pair.held))
    assert pair.sides[0].store.counters(pair.tube).counts.ack == (0 if late else 2)


@pytest.mark.parametrize("sort", [sort for sort in TUBES if sort != "reliable"])
def test_a_delete_by_id(pair_of: Callable[..., Pair], sort: str) -> None:
    """In every state, and of tasks that have an address, a reply or a group, or are past their ttl."""
    pair = pair_of(sort)
    pair.put(("taken", {}), ("ready", {}), ("buried", {}), ("again", {}))
    pair.take(1)
    pair.settle(Move("bury", 3))
    pair.put(("addressed", {"address": "a"}), ("replying", {"reply_to": "replies"}), ("grouped", {"group": "g"}))
    if "delay" in pair.tube.kind.accepts:
        pair.put(("delayed", {"delay": 60}), ("expired", {"ttl": 1}))
        pair.wait(1000, advance=False)
    for id in (*range(1, 11), 4):
        pair.ack(Move("delete", id))
    pair.take(1)


@pytest.mark.parametrize("seed", range(20 if os.environ.get("PENSTOCK_CAMPAIGN") == "long" else 1))
@pytest.mark.parametrize("sort", TUBES)
def test_any_calls(pair_of: Callable[..., Pair], sort: str, seed: int) -> None:
    pair, dice = pair_of(sort), random.Random(f"{sort} {seed}")
    for step in range(STEPS):
        match dice.choices(["put", "take", "ack", "delete", "release", "later", "start"], [30, 25, 30, 6, 6, 6, 3])[0]:
            case "put":
                pair.put(*((step, _options(pair.tube, dice)) for _ in range(dice.choice([1, 1, 2, 4]))))
            case "take":
                pair.take(dice.choice([1, 1, 3, 10]))
            case "ack" if pair.held:
                dice.shuffle(pair.held)
                count = dice.choice([1, 1, 2, 5])
                acked, pair.held = pair.held[:count], pair.held[count:]
                pair.ack(*(pair.ack_of(record, b"7", dice.random() < 0.1) for record in acked))
            case "delete" if pair.tube.kind.leased:
                pair.ack(Move("delete", dice.randint(1, 2 * step + 1)))
            case "release" if pair.held and pair.tube.kind.leased:
                record = pair.held.pop()
                pair.settle(Move("release", record.id, pair.session, record.lease))
            case "later":
                pair.wait(dice.choice([1, 1000, 6000]), advance=dice.random() < 0.5)
            case "start" if pair.tube.kind.leased:
                pair.start_groups()


def _options(tube: Tube, dice: random.Random) -> PutOptions:
    options: PutOptions = {}
    kind = tube.kind
    if kind.per_utube:
        options["utube"] = dice.choice((*UTUBES, None))
    if not kind.leased:
        return options
    if "delay" in kind.accepts and dice.random() < 0.2:
        options["delay"] = dice.choice([1, 6])
        options["ttl"] = dice.choice([None, 3, 60])
        options["pri"] = dice.choice([None, 1, 5])
    match dice.randrange(6):
        case 0:
            options["address"], options["on_duplicate"] = dice.choice("wxyz"), "ignore"
        case 1:
            options["reply_to"] = dice.choice(["replies", KEEP_EXPIRY])
        case 2:
            options["group"] = dice.choice(GROUPS)
    return options

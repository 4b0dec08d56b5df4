"""Runs scripts by name with the keys of a tube, and reads its parts and its counters."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import astuple

from penstock.core.kind import CLOCK
from penstock.core.options import Tube, make_tube
from penstock.core.refusals import tube_missing
from penstock.core.results import Counts, Effects, Event, MicroQueue
from penstock.core.task import Record
from penstock.core.transfer import TubeCounters, erased_options, frozen_options, hidden, moved
from penstock.errors import NoSuchTube
from penstock.store.redis.encoding import decode, micro_queue_name, read_micro_queue, task_id
from penstock.store.redis.redis_connection import Argument, Reply, packed
from penstock.store.redis.scripts import MICRO_QUEUES, PLAIN, UNLEASED, Script, load_script
from penstock.store.redis.servers import Request, Servers

# Hash tags. A cluster keeps all keys with one tag on one node, so a script may use them together.
TUBES = "tubes"
SESSIONS = "sessions"


class Keys:
    """The key names of one store. Its prefix separates them from other keys on the server."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.channel = f"{prefix}:tube_changed".encode()

    def name(self, tag: str | int, part: str) -> bytes:
        """One key: `{penstock:7}:tasks`."""
        return f"{{{self.prefix}:{tag}}}:{part}".encode()


# What a script returns if its tube does not exist.
_NO_TUBE = -1
_SERVERS_CLOCK = packed("")
# Tasks that one call of a paging script reads: about a millisecond.
PAGE = 500
# The parts of a tube that are sorted sets; the others are hashes.
SORTED = frozenset(
    {"ready", "buried", "taken", "delivered", "due", "queue", "members", "kept", "moving", "ends", "marks"}
)
# Tubes that one script checks.
_MANY = 500


class Shape(NamedTuple):
    """The properties of a tube that scripts need.

    Letters: `2` if a second rank orders it, `f` if it is fair, `n` if new tasks always come last, `c` if hand-outs set
    a clock. The limit is that of its micro-queues; with clocks, the period.
    """

    letters: str
    limit: int
    sort: str
    packed: bytes  # letters and limit, as arguments


class ScriptRunner:
    """Runs scripts on the servers of one store, by the store's clock or the caller's."""

    def __init__(self, servers: Servers, keys: Keys, clock: Callable[[], int] | None, *, modern: bool) -> None:
        self.servers = servers
        self.keys = keys
        self.modern = modern
        self._clock = clock
        # By script and tag: the keys, and the part that all its calls have in common, without the number of words.
        self._heads: dict[tuple[Script, str | int], tuple[tuple[bytes, ...], bytes]] = {}
        self._shapes: dict[int, Shape] = {}
        # By tube, how far the clock of its server is ahead of this process's monotonic clock.
        self._ahead: dict[int, float] = {}
        #: Called with a tube that has tasks that cannot be read, to repair it.
        self.on_unreadable: Callable[[Tube], None]
        #: By tube and part, the ids of what is being read in pages.
        self.listed: dict[tuple[int, str], array[int]] = {}

    def moment(self) -> int | str:
        """The time as a script argument; '' makes the script read the server's clock."""
        return "" if self._clock is None else self._clock()

    def now(self, tag: str | int) -> int:
        """The time on the server that has the keys of a tag."""
        moment = self.moment()
        if isinstance(moment, int):
            return moment
        seconds, micros = self.servers.command(self.keys.name(tag, "meta"), b"TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def guess_now(self, tube: Tube) -> int:
        """Estimate the time on the tube's server, to some milliseconds. Asks only if no script of the tube ran."""
        ahead = None if self._clock else self._ahead.get(tube.no)
        return self.now(tube.no) if ahead is None else round(time.monotonic() * 1000 + ahead)

    def on_tube(self, name: str, tube: Tube, *arguments: Argument, idempotent: bool = False) -> list[Reply]:
        """Run a script on a tube. Its first arguments are the time, the tube's shape and its limit."""
        return self.ask(tube, self.tube_request(name, tube, *arguments), idempotent=idempotent)

    def ask(self, tube: Tube, request: Request, *, idempotent: bool) -> list[Any]:
        """Run a script on a tube. Raises NoSuchTube if the tube is gone."""
        reply = self.known(tube, self.servers.run(request, idempotent=idempotent))
        self._ahead[tube.no] = reply[0] - time.monotonic() * 1000
        return reply

    def known(self, tube: Tube, reply: list[Reply]) -> list[Reply]:
        """Return the reply, or raise NoSuchTube if it says that the tube is gone."""
        if reply[0] == _NO_TUBE:
            raise self.missing(tube)
        return reply

    def missing(self, tube: Tube) -> NoSuchTube:
        """The error for a tube that is gone; it says where the tube was moved, if it was."""
        frozen = self.frozen(tube)
        return tube_missing(tube) if frozen is None else hidden(frozen)

    def frozen(self, tube: Tube, no: int | None = None) -> Tube | None:
        """The frozen tube, which says where it was moved; None if it was not. `no`: read that stored tube instead."""
        to, erased = self.command(tube.no if no is None else no, "meta", b"HMGET", b"moved", b"erased")
        if to is None:
            return None
        frozen = make_tube(tube.no, moved(tube.name), tube.kind, frozen_options(tube.given, to.decode()))
        return frozen if erased is None else make_tube(tube.no, frozen.name, tube.kind, erased_options(frozen))

    def on_tubes(self, name: str, tubes: Sequence[Tube], *arguments: Argument) -> list[list[Reply]]:
        """Run an idempotent script on several tubes, in as few round trips as there are servers."""
        if len(tubes) == 1:
            return [self.on_tube(name, tubes[0], *arguments, idempotent=True)]
        replies = self.servers.run_all([self.tube_request(name, tube, *arguments) for tube in tubes])
        return [self.known(tube, reply) for tube, reply in zip(tubes, replies, strict=True)]

    def tube_request(self, name: str, tube: Tube, *arguments: Argument) -> Request:
        """The request that runs a script on a tube, to be sent later."""
        shape = self.shape(tube)
        moment = self.moment()
        when = _SERVERS_CLOCK if moment == "" else packed(moment)
        words = when + shape.packed + packed(*arguments)
        return self.script_request(self.script(name, shape.sort), tube.no, 3 + len(arguments), words)

    def read_changes(self, tube: Tube, reply: list[Reply], effects: Effects) -> list[Reply]:
        """Add what a script did, according to its answer, to `effects`. Returns the rest of the answer."""
        _, readied, removed, log, *rest = reply
        no, broken = tube.public_no, False
        if readied > 0:
            effects.readied[no] = effects.readied.get(no, 0) + readied
        if removed:
            effects.removed[no] = effects.removed.get(no, 0) + removed
        for events, id, value in zip(log[::3], log[1::3], log[2::3], strict=True):
            if not events:
                broken = True
                continue
            record = decode(id, value)
            for event in events.decode().split():
                effects.events.append(Event(no, event, tube.shown(record)))
            if record.state == "-" and record.address is not None and tube.kind.leased:
                effects.ended.append(("task", no, tube.public_id(record.id)))
        if broken:
            self.on_unreadable(tube)
        return rest

    def overdue(self, numbers: Sequence[int]) -> tuple[list[bool], int]:
        """Return for each of these stored tubes whether something is due, and the time. One script checks many;
        on a cluster, only one."""
        script, size = load_script("overdue", modern=self.modern), _MANY if self.servers.one_server else 1
        parts = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        keys = [tuple(self.keys.name(no, key) for no in part for key in script.keys) for part in parts]
        requests = [
            Request(script, some, b"*%d\r\n%b" % (len(some) + 4, _head(script, some) + packed(self.moment())))
            for some in keys
        ]
        replies = self.servers.run_all(requests)
        pairs = zip(parts, (set(reply[1:]) for reply in replies), strict=True)
        due = [place in found for part, found in pairs for place in range(1, len(part) + 1)]
        return due, replies[0][0] if replies else self.now(TUBES)

    def on_tag(self, name: str, tag: str | int, *arguments: Argument, idempotent: bool = False) -> Reply:
        """Run a script on the keys of a tag, with these arguments only."""
        return self.servers.run(self.tag_request(name, tag, *arguments), idempotent=idempotent)

    def tag_request(self, name: str, tag: str | int, *arguments: Argument) -> Request:
        """The request that runs a script on the keys of a tag, to be sent later."""
        script = load_script(name, modern=self.modern)
        return self.script_request(script, tag, len(arguments), packed(*arguments))

    def command(self, tag: str | int, part: str, command: bytes, *words: Argument) -> Reply:
        """Send a command on one key; it must be idempotent or only read."""
        key = self.keys.name(tag, part)
        return self.servers.command(key, command, key, *words)

    def command_each(self, tubes: Sequence[Tube], part: str, command: bytes, *words: Argument) -> list[Reply]:
        """Send a command, like that of `command`, to each of several tubes, in as few round trips as possible."""
        keys = [self.keys.name(tube.no, part) for tube in tubes]
        return self.servers.command_all([(key, (command, key, *words)) for key in keys])

    def scan(self, tube: Tube, part: str) -> Iterable[tuple[bytes, bytes]]:
        """A hash or sorted set of a tube, read in pages."""
        cursor, command = b"0", b"ZSCAN" if part in SORTED else b"HSCAN"
        while True:
            cursor, pairs = self.command(tube.no, part, command, cursor, b"COUNT", PAGE)
            yield from zip(pairs[::2], pairs[1::2], strict=True)
            if cursor == b"0":
                return

    def all_ids(self, tube: Tube, part: str = "tasks") -> list[int]:
        """The ids of all stored tasks, or of what another part has, in order."""
        return sorted({task_id(field) for field, _ in self.scan(tube, part)})

    def read_part(self, tube: Tube, part: str) -> dict[bytes, Any]:
        """A whole part of a tube: the values of a hash, or the scores of a sorted set."""
        found = dict(self.scan(tube, part))  # a scan may return a field twice
        return {name: float(score) for name, score in found.items()} if part in SORTED else found

    def read_counters(self, tubes: Sequence[Tube], *, frozen: bool = False) -> list[TubeCounters]:
        """The last ids and the counters of stored tubes; `frozen`: also of tubes that were moved away."""
        names = ("last", "frozen", "paused", "ms", "seq", "skipped", "unput", *Counts.__struct_fields__)
        replies = self.command_each(tubes, "meta", b"HMGET", *(name.encode() for name in names))
        return [self._counted(tube, reply, frozen=frozen) for tube, reply in zip(tubes, replies, strict=True)]

    def _counted(self, tube: Tube, found: list[bytes | None], *, frozen: bool) -> TubeCounters:
        """The counters of a stored tube. `put` is the last id less ids never given; `ready` and `done` are computed."""
        last = found[1] if frozen and found[0] is None else found[0]
        self.known(tube, [-1 if last is None else 0])
        ms, seq, skipped, unput, *numbers = (int(number or 0) for number in found[3:])
        counts = dict(zip(Counts.__struct_fields__, numbers, strict=True))
        done = counts["ack"] + counts["fail"] + counts["delete"] + counts["ttl"] + skipped - unput
        counts.update(put=int(last or 0) - unput, done=done)
        counts["ready"] = counts["put"] - done - counts["taken"] - counts["delayed"] - counts["buried"]
        return TubeCounters(int(last or 0), (ms, seq), Counts(**counts), found[2] is not None)

    def read_queue(self, tube: Tube, utube: str) -> MicroQueue:
        """The counters of a micro-queue."""
        stored = self.command(tube.no, "micro_queues", b"HGET", micro_queue_name(utube))
        taken, heads, waiting, _ = read_micro_queue(stored or bytes(18))
        return MicroQueue(utube, taken, heads, waiting)

    def read_waits(self, tubes: Sequence[Tube]) -> dict[int, float]:
        """How long the oldest ready task of each tube has waited (`TubeCounters.waits`), without dropped tubes."""
        replies = self.servers.run_all([self.tube_request("ready_since", tube) for tube in tubes])
        found: dict[int, float] = {}
        for tube, reply in zip(tubes, replies, strict=True):
            with suppress(NoSuchTube):
                # If the script refused, on_tube raises the reason or, in a pool, restores the index.
                now, since = reply if len(reply) > 1 else self.on_tube("ready_since", tube, idempotent=True)
                waits = since and tube.kind.hand_out != CLOCK
                found[tube.no] = max(0, now - since) / 1000 if waits else 0.0
        return found

    def script(self, name: str, sort: str) -> Script:
        """The script of that name for this sort of tube."""
        return load_script(name, sort=sort, modern=self.modern)

    def shape(self, tube: Tube) -> Shape:
        """Return the Shape of the tube, from a cache."""
        shape = self._shapes.get(tube.no)
        if shape is None or shape.limit != _limit(tube):  # the tube was altered since
            shape = self._shapes[tube.no] = _shape(tube)
        return shape

    def script_request(self, script: Script, tag: str | int, count: int, words: bytes) -> Request:
        """The request that runs a script with that many arguments, which are packed."""
        found = self._heads.get((script, tag))
        if found is None:
            names = tuple(self.keys.name(tag, part) for part in script.keys)
            found = self._heads[script, tag] = names, _head(script, names)
        keys, head = found
        return Request(script, keys, b"*%d\r\n%b%b" % (3 + len(keys) + count, head, words))


def _head(script: Script, keys: Sequence[bytes]) -> bytes:
    """What a call of a script begins with, after its number of words."""
    return packed(b"EVALSHA", script.digest, len(keys), *keys)


def _shape(tube: Tube) -> Shape:
    kind = tube.kind
    second = tube.fair or (len(kind.order) > 1 and kind.order[1] != "id")
    clocked = kind.hand_out == CLOCK
    letters = "2" * second + "f" * tube.fair + "n" * (kind.order[0] == "id") + "c" * clocked
    sort = UNLEASED if not kind.leased else MICRO_QUEUES if kind.per_utube else PLAIN
    return Shape(letters, _limit(tube), sort, packed(letters, _limit(tube)))


def _limit(tube: Tube) -> int:
    return tube.period if tube.kind.hand_out == CLOCK else tube.utube_limit


def read_pairs(pairs: list[Reply]) -> list[Record]:
    """Records from a reply of id, record, id, record, ..."""
    return [decode(id, value) for id, value in zip(pairs[::2], pairs[1::2], strict=True)]


def add_up(parts: Sequence[TubeCounters]) -> Counts:
    """The counters of all shards of a tube together."""
    return Counts(*map(sum, zip(*(astuple(part.counts) for part in parts), strict=True)))

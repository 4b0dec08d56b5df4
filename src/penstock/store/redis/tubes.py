"""Tubes by name, and the shards of sharded tubes.

The keys of a tube are in its own slot: they are created before its name, and removed before it. A sharded tube consists
of several stored tubes, its shards, each with its own slot and ids. Callers of the store see one tube; scripts,
sessions, outboxes and checks see only the shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from penstock.core.kind import Kind
from penstock.core.options import Tube, changed_options, decode_given, encode_given, make_tube
from penstock.core.refusals import tube_exists
from penstock.core.results import Finding, Overdue
from penstock.core.shards import own_id, shard_of
from penstock.core.stored_shard import Shard, shard_at
from penstock.core.task import NO_UTUBE
from penstock.core.transfer import hidden, is_hidden, is_importing, plain_name
from penstock.store.redis.encoding import MAX_ID, task_key
from penstock.store.redis.script_runner import TUBES, ScriptRunner

# Commands in one round trip.
_STEP = 1000
# Tubes are listed again after this many seconds, in case a client died before it announced that it altered one.
_LISTED_SECONDS = 60.0


def by_tube(stored: Iterable[Tube]) -> list[tuple[Tube, list[int]]]:
    """Each of these stored tubes once, with its positions."""
    found: dict[int, tuple[Tube, list[int]]] = {}
    for position, tube in enumerate(stored):
        found.setdefault(tube.no, (tube, []))[1].append(position)
    return list(found.values())


class Declared(msgspec.Struct, omit_defaults=True):
    """A tube's declaration as it is stored. `floor`: ids up to this one came from another store."""

    name: str
    kind: Kind
    given: str
    floor: int = 0


encode_declared = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Declared).decode


class Tubes:
    """The tubes of one store."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner
        self._shards: dict[int, Sequence[Shard]] = {}
        self._floors: dict[int, int] = {}
        #: Tubes that calls of this process have used, by name, and stored tubes by number, until a tube is altered.
        self.by_name: dict[str, Tube] = {}
        self.by_no: dict[int, Tube] = {}
        self._listed: list[Tube] = []
        self._listed_as: bytes | None = None
        self._listed_until = 0.0

    # shards

    def shards(self, tube: Tube) -> Sequence[Tube]:
        """The stored tubes of a tube: itself, unless it is sharded."""
        if tube.shards == 1:
            return (tube,)
        shards = self._shards.get(tube.no)
        if shards is None or shards[0].name != tube.name or shards[0].given != tube.given:  # imported or altered since
            floor = self.floor(tube)
            shards = self._shards[tube.no] = [shard_at(tube, place, floor) for place in range(tube.shards)]
        return shards

    def floor(self, tube: Tube) -> int:
        """The last id that came from another store; the highest possible id while the tube is being imported."""
        return MAX_ID if is_importing(tube.name) else self._floors.get(tube.no, 0)

    def learn(self, no: int, floor: int) -> None:
        """Note the last id that came from another store in the tube of that number; 0 if none did."""
        if floor:
            self._floors[no] = floor

    def shard_for_replies(self, tube: Tube, source: int) -> Tube:
        """The stored tube for replies from `source`: always the same shard, which knows what it received before."""
        shards = self.shards(tube)
        return shards[shard_of(NO_UTUBE, len(shards)) if tube.kind.per_utube else source % len(shards)]

    def locate(self, tube: Tube, ids: Sequence[int], *parts: str) -> list[tuple[Tube, int]]:
        """The stored tube of each task and its id there; an arbitrary one if none has the id in one of these parts.

        The id of a task that came from another store does not say which shard has it, so all shards are asked.
        """
        floor, shards, keys = self.floor(tube), self.shards(tube), self._runner.keys
        places = {id: own_id(id, tube.shards, floor) for id in ids}
        old = [id for id in places if 0 < id <= floor]
        asked = [(id, place, part) for id in old for place in range(tube.shards) for part in parts]
        for start in range(0, len(asked), _STEP):
            some = asked[start : start + _STEP]
            names = [keys.name(shards[place].no, part) for _, place, part in some]
            words = [(key, (b"HEXISTS", key, task_key(id))) for key, (id, _, _) in zip(names, some, strict=True)]
            replies = self._runner.servers.command_all(words)
            places.update((id, (place, id)) for (id, place, _), reply in zip(some, replies, strict=True) if reply)
        return [(shards[place], own) for place, own in map(places.__getitem__, ids)]

    # names

    def overdue(self) -> Overdue:
        """See `Store.overdue`. One command, and one script on each server."""
        altered = self._runner.command(TUBES, "store", b"HGET", b"altered")
        if altered != self._listed_as or time.monotonic() >= self._listed_until:
            self._listed, self._listed_as = self.all(), altered
            self.by_name.clear()
            self.by_no.clear()
            self._listed_until = time.monotonic() + _LISTED_SECONDS
        stored = [(part.no, tube) for tube in self._listed for part in self.shards(tube)]
        due, clock = self._runner.overdue([no for no, _ in stored])
        tubes = {tube.no: tube for (_, tube), is_due in zip(stored, due, strict=True) if is_due}
        return Overdue(list(tubes.values()), (altered or b"").decode(), clock)

    def note_altered(self) -> None:
        """Notify all processes to list the tubes again."""
        self._runner.command(TUBES, "store", b"HSET", b"altered", uuid4().hex)

    def save(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        """Create the tube, or return the existing one."""
        tube = self.find(name)
        if tube is None:
            made = self._numbered(make_tube(0, name, kind, given))
            if self.name("", made):
                return made
            for stored in self.shards(made):
                self._runner.command(stored.no, "meta", b"DEL")  # another client created it first
            return self.save(name, kind, given, exist_ok=exist_ok)
        if not exist_ok:
            raise tube_exists(name)
        return tube

    def find(self, name: str) -> Tube | None:
        """The tube of that name, which may be a hidden one. Raises NoSuchTube for the public name of a tube that is
        being imported or was moved away."""
        plain = plain_name(name)
        tube = self._lookup(name) or (None if name == plain else self._lookup(plain))
        if tube is None:
            return None
        there = tube if self._lives(tube) else self._frozen(tube)
        if there is not None and there.name != name and name == plain:
            raise hidden(there)
        if there is None and name == plain:
            self.forget(tube)  # the client that dropped the tube died before it removed the name
        return there if there is not None and there.name == name else None

    def _lookup(self, name: str) -> Tube | None:
        """The tube of a name, or the one that is being imported under it."""
        named, imported = self._runner.command(TUBES, "names", b"HMGET", name, f"<{name}")
        no = named or imported
        declared = None if no is None else self._runner.command(TUBES, "tubes", b"HGET", no)
        return None if no is None or declared is None else self._known(int(no), declared)

    def alter(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        """Change options of a tube."""
        while True:
            before = self._runner.command(TUBES, "tubes", b"HGET", tube.no)
            if before is None or not self._lives(tube):
                raise self._runner.missing(tube)
            declared = _decode(before)
            given = changed_options(decode_given(declared.given), changes)
            after = encode_declared(msgspec.structs.replace(declared, given=encode_given(given).decode()))
            words = "", declared.name, tube.no, before, after, uuid4().hex
            written = self._runner.on_tag("declare_tube", TUBES, *words, idempotent=True)
            if written == 0:
                raise self._runner.missing(tube)
            if written == 1:
                return self._known(tube.no, after)

    def name(self, before: str, tube: Tube, floor: int = 0) -> bool:
        """Give a tube its name, instead of the one before, and its floor. Returns False if the name is in use."""
        declared = encode_declared(Declared(tube.name, tube.kind, encode_given(tube.given).decode(), floor))
        words = before, tube.name, tube.no, b"", declared, uuid4().hex
        return bool(self._runner.on_tag("declare_tube", TUBES, *words, idempotent=True))

    def frozen(self) -> list[Tube]:
        """All tubes that were moved away, by name."""
        found = (self._frozen(tube) for tube in self._declared())
        return sorted((tube for tube in found if tube is not None), key=lambda tube: tube.name)

    def _frozen(self, tube: Tube) -> Tube | None:
        """The tube as moved away, None if it was not: its first shard decides, which is frozen last and erased last."""
        return self._runner.frozen(tube, self.shards(tube)[0].no)

    def _declared(self) -> list[Tube]:
        pairs = self._runner.command(TUBES, "tubes", b"HGETALL")
        return [self._known(int(no), declared) for no, declared in zip(pairs[::2], pairs[1::2], strict=True)]

    def all(self) -> list[Tube]:
        """All tubes by name, without those that are being imported or were moved away."""
        tubes = [tube for tube in self._declared() if not is_hidden(tube.name)]
        lives = self.live([self.shards(tube)[0] for tube in tubes])
        found = (tube for tube, alive in zip(tubes, lives, strict=True) if alive)
        return sorted(found, key=lambda tube: tube.name)

    def check(self, repair: bool) -> list[Finding]:
        """Find tubes that no call can find, because their name or their `meta` was removed."""
        findings: list[Finding] = []
        for tube in self._declared():
            for stored in self.shards(tube):
                there = self._runner.command(stored.no, "meta", b"EXISTS")
                if not there and (size := self._runner.command(stored.no, "tasks", b"HLEN")):
                    what = f"its meta is lost, so no call finds its {size} tasks"
                    findings.append(Finding(tube.name, None, what, "restore the last snapshot of the server"))
            no = self._runner.command(TUBES, "names", b"HGET", tube.name)
            # A drop removes both at once.
            if no != b"%d" % tube.no and self._runner.command(TUBES, "tubes", b"HEXISTS", tube.no):
                name = tube.name if no is None else f"{tube.name}.{tube.no}"
                what = f"no call finds tube number {tube.no} by its name"
                findings.append(Finding(tube.name, None, what, f"give it the name {name}"))
                if repair:
                    self.name("", replace(tube, name=name), self.floor(tube))
        return findings

    def stored(self) -> list[Tube]:
        """All tubes by name, each sharded tube replaced by its shards."""
        return [stored for tube in self.all() for stored in self.shards(tube)]

    def forget(self, tube: Tube) -> None:
        """Remove the remaining shards of a dropped tube, then its name."""
        for shard in self.shards(tube)[1:]:
            self._runner.on_tag("drop_tube", shard.no, self._runner.moment(), tube.name, 1, idempotent=True)
        self._runner.on_tag("unname_tube", TUBES, tube.name, tube.no, idempotent=True)

    def _numbered(self, tube: Tube) -> Tube:
        """The tube with a new number, and with its keys; the numbers after it are reserved for its shards."""
        wanted = 1 if tube.shards == 1 else 1 + tube.shards
        while True:
            # A retry after a lost answer skips numbers, of which there are enough; none is given twice.
            last = self._runner.command(TUBES, "store", b"HINCRBY", b"last", wanted)
            made = replace(tube, no=last - wanted + 1)
            if self._runner.command(TUBES, "tubes", b"HEXISTS", made.no):
                continue  # the count of tubes was lost
            if all(self._runner.command_each(self.shards(made), "meta", b"HSETNX", b"last", 0)):
                return made

    def _lives(self, tube: Tube) -> bool:
        return all(self.live(self.shards(tube)[:1]))

    def live(self, tubes: Sequence[Tube]) -> list[bool]:
        """Return for each of these stored tubes whether it exists and is not frozen."""
        return [reply == 1 for reply in self._runner.command_each(tubes, "meta", b"HEXISTS", b"last")]

    def _known(self, no: int, stored: bytes) -> Tube:
        self.learn(no, _decode(stored).floor)
        return make_declared(no, stored)


def make_declared(no: int, stored: bytes) -> Tube:
    """The tube of that number, from its stored declaration."""
    declared = _decode(stored)
    return make_tube(no, declared.name, declared.kind, decode_given(declared.given))

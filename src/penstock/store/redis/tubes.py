"""Tubes by name. A tube's own keys stand in its own slot: they are there before its name is, and go before it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec.structs import replace

from penstock.core.kind import Kind
from penstock.core.options import Tube, decode_given, encode_given, make_tube
from penstock.store.moving import hidden, is_hidden, named, plain_name
from penstock.store.redis.keys import TUBES
from penstock.store.redis.runner import Runner
from penstock.store.redis.shards import Shards
from penstock.store.refusals import tube_exists


class Declared(msgspec.Struct, omit_defaults=True):
    """A tube as it is stored. `floor`: its ids up to this one came from another store."""

    name: str
    kind: Kind
    given: str
    floor: int = 0


encode_declared = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Declared).decode


class Tubes:
    """The tubes of one store."""

    def __init__(self, runner: Runner, shards: Shards) -> None:
        self._runner = runner
        self._keys = runner.keys
        self.shards = shards

    def save(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        """Create it, unless it is there."""
        tube = self.find(name)
        if tube is None:
            made = self._numbered(make_tube(0, name, kind, given))
            for stored in self.shards.of(made):
                self._runner.on_tag("create_tube", stored.no, again=True)
            declared = encode_declared(Declared(name, kind, encode_given(given).decode()))
            tube = self._tube(self._runner.on_tag("name_tube", TUBES, name, made.no, declared, again=True))
            assert tube is not None
            if tube.no == made.no:
                return tube
            for stored in self.shards.of(made):
                self._runner.on_tag("delete_unnamed_tube", stored.no, again=True)  # another came first
        if not exist_ok:
            raise tube_exists(name)
        return tube

    def find(self, name: str) -> Tube | None:
        """The tube of that name; NoSuchTube where it is on its way, here or away from here."""
        if name != plain_name(name):
            return self._find_hidden(name)
        tube = self._lookup(name)
        if tube is None:
            return None
        if self._lives(tube):
            return named([tube], name)
        if (sealed := self._sealed(tube)) is not None:
            raise hidden(sealed)
        self.forget(tube)  # whoever dropped it died before it could
        return None

    def _find_hidden(self, name: str) -> Tube | None:
        """One that is arriving has its name; one that is gone is found by that which it had."""
        tube = self._lookup(name)
        if tube is not None:
            return tube if self._lives(tube) else None
        tube = self._lookup(plain_name(name))
        sealed = None if tube is None else self._sealed(tube)
        return sealed if sealed is not None and sealed.name == name else None

    def _lookup(self, name: str) -> Tube | None:
        return self._tube(self._runner.on_tag("find_tube", TUBES, name, again=True))

    def rename(self, tube: Tube, name: str, floor: int) -> bool:
        """Give a tube another name, and the last id that came with it; False where the name is in use."""
        declared = encode_declared(Declared(name, tube.kind, encode_given(tube.given).decode(), floor))
        return bool(self._runner.on_tag("rename_tube", TUBES, tube.name, name, tube.no, declared, again=True))

    def sealed(self) -> list[Tube]:
        """All tubes that were moved, by name."""
        found = (self._sealed(tube) for tube in self._declared())
        return sorted((tube for tube in found if tube is not None), key=lambda tube: tube.name)

    def _sealed(self, tube: Tube) -> Tube | None:
        """The tube as one that was moved, if it was: its first shard tells, which is sealed last and erased last."""
        return self._runner.sealed(tube, self.shards.of(tube)[0].no)

    def _declared(self) -> list[Tube]:
        key = self._keys.name(TUBES, "tubes")
        pairs = cast("list[bytes]", self._runner.servers.command(key, b"HGETALL", key))
        return [self._known(int(pairs[i]), pairs[i + 1]) for i in range(0, len(pairs), 2)]

    def all(self) -> list[Tube]:
        """All tubes, by name, without those that are arriving or gone."""
        tubes = [tube for tube in self._declared() if not is_hidden(tube.name)]
        lives = self.live([self.shards.of(tube)[0] for tube in tubes])
        found = (tube for tube, alive in zip(tubes, lives, strict=True) if alive)
        return sorted(found, key=lambda tube: tube.name)

    def stored(self) -> list[Tube]:
        """The same with the shards of sharded ones in their place."""
        return [stored for tube in self.all() for stored in self.shards.of(tube)]

    def forget(self, tube: Tube) -> None:
        """A dropped tube loses its name, after the shards that are left of it; it goes with the first one."""
        for shard in self.shards.of(tube)[1:]:
            self._runner.on_tag("drop_tube", shard.no, self._runner.moment(None), tube.name, 1, again=True)
        self._runner.on_tag("unname_tube", TUBES, tube.name, tube.no, again=True)

    def _numbered(self, tube: Tube) -> Tube:
        """The tube with its number, which those of its shards follow."""
        wanted = 1 if tube.shards == 1 else 1 + tube.shards
        last = cast(int, self._runner.on_tag("next_tube_number", TUBES, wanted))
        return replace(tube, no=last - wanted + 1)

    def _lives(self, tube: Tube) -> bool:
        return all(self.live(self.shards.of(tube)[:1]))

    def live(self, tubes: Sequence[Tube]) -> list[bool]:
        """Which of these stored tubes are there, and not sealed."""
        metas = [self._keys.name(tube.no, "meta") for tube in tubes]
        replies = self._runner.servers.command_all([(meta, (b"HEXISTS", meta, b"last")) for meta in metas])
        return [reply == 1 for reply in replies]

    def _tube(self, reply: object) -> Tube | None:
        found = cast("list[object]", reply)
        return self._known(cast(int, found[0]), cast(bytes, found[1])) if found else None

    def _known(self, no: int, stored: bytes) -> Tube:
        declared = _decode(stored)
        self.shards.learn(no, declared.floor)
        return _made(no, declared)


def make_declared(no: int, stored: bytes) -> Tube:
    """The tube of that number, from what is stored."""
    return _made(no, _decode(stored))


def _made(no: int, declared: Declared) -> Tube:
    return make_tube(no, declared.name, declared.kind, decode_given(declared.given))

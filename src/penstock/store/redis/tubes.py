"""Tubes by name. A tube's own keys stand in its own slot: they are there before its name is, and go before it goes."""

from __future__ import annotations

from typing import cast

import msgspec

from penstock.core.kind import Kind
from penstock.core.options import Tube, decode_given, encode_given, make_tube
from penstock.errors import TubeExists
from penstock.store.redis.keys import TUBES
from penstock.store.redis.runner import Runner


class Declared(msgspec.Struct):
    """A tube as it is stored."""

    name: str
    kind: Kind
    given: str


encode_declared = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Declared).decode


class Tubes:
    """The tubes of one store."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._keys = runner.keys

    def save(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        """Create it, unless it is there."""
        tube = self.find(name)
        if tube is None:
            no = cast(int, self._runner.on_tag("number", TUBES))
            self._runner.on_tag("create", no, again=True)
            declared = encode_declared(Declared(name, kind, encode_given(given).decode()))
            tube = _tube(self._runner.on_tag("name", TUBES, name, no, declared, again=True))
            assert tube is not None
            if tube.no == no:
                return tube
            self._runner.on_tag("uncreate", no, again=True)  # another came first
        if not exist_ok:
            raise TubeExists(f"tube {name} exists already: open it with broker.tube({name!r})")
        return tube

    def find(self, name: str) -> Tube | None:
        """The tube of that name."""
        tube = _tube(self._runner.on_tag("lookup", TUBES, name, again=True))
        if tube is None or self._lives(tube):
            return tube
        self.forget(tube)  # whoever dropped it died before it could
        return None

    def all(self) -> list[Tube]:
        """All tubes, by name."""
        key = self._keys.name(TUBES, "tubes")
        pairs = cast("list[bytes]", self._runner.servers.command(key, b"HGETALL", key))
        tubes = [make_declared(int(pairs[i]), pairs[i + 1]) for i in range(0, len(pairs), 2)]
        metas = [self._keys.name(tube.no, "meta") for tube in tubes]
        lives = self._runner.servers.command_all([(meta, (b"HEXISTS", meta, b"last")) for meta in metas])
        found = (tube for tube, alive in zip(tubes, lives, strict=True) if alive)
        return sorted(found, key=lambda tube: tube.name)

    def forget(self, tube: Tube) -> None:
        """A dropped tube loses its name."""
        self._runner.on_tag("unname", TUBES, tube.name, tube.no, again=True)

    def _lives(self, tube: Tube) -> bool:
        key = self._keys.name(tube.no, "meta")
        return self._runner.servers.command(key, b"HEXISTS", key, b"last") == 1


def _tube(reply: object) -> Tube | None:
    found = cast("list[object]", reply)
    return make_declared(cast(int, found[0]), cast(bytes, found[1])) if found else None


def make_declared(no: int, stored: bytes) -> Tube:
    """The tube of that number, from what is stored."""
    declared = _decode(stored)
    return make_tube(no, declared.name, declared.kind, decode_given(declared.given))

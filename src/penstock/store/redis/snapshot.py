"""Everything stored of one tube, read in pages: the records, what must follow from them, and what is there."""

from __future__ import annotations

import struct
from functools import cached_property
from typing import cast

import msgspec

from penstock.core.group import CANCELLING
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Record
from penstock.errors import StoreCorrupt
from penstock.store.base import STATE_COUNTER, Counts
from penstock.store.redis.finding import count, read_lane, scan
from penstock.store.redis.keys import task_id, task_key
from penstock.store.redis.link_checks import Links, Tie
from penstock.store.redis.record import UNREADABLE, decode
from penstock.store.redis.runner import Runner

INDEXES = ("ready", "buried", "taken", "delivered", "due", "queue", "members")
Place = tuple[float, float, int]


class LanePlace(msgspec.Struct):
    """A micro-queue: what is stored of it, and what its tasks say."""

    said: tuple[int, int, int] = (0, 0, 0)
    turn: int = 0
    taken: int = 0
    heads: list[Place] = []
    waiting: list[Place] = []
    turns: list[float] = []

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Taken, heads, waiting, counted."""
        return self.taken, len(self.heads), len(self.waiting)


class Snapshot:
    """One look at a tube. `wanted` and `there`: index -> name -> score, by the records and in fact."""

    def __init__(self, tube: Tube, shape: str, links: Links) -> None:
        self.tube = tube
        self.links = links
        self._second = "2" in shape
        self.counts = Counts()
        self.states: dict[str, int] = dict.fromkeys(STATE_COUNTER, 0)
        self.wanted: dict[str, dict[bytes, tuple[float, int]]] = {index: {} for index in INDEXES}
        self.there: dict[str, dict[bytes, float]] = {index: {} for index in INDEXES}
        self.lanes: dict[str, LanePlace] = {}
        self.sessions: set[int] = set()
        self.orphans: list[tuple[int, int]] = []
        self.strays: list[bytes] = []
        self.unreadable: list[bytes] = []
        self.bereft: list[bytes] = []

    @cached_property
    def led_to(self) -> dict[bytes, tuple[str, int | None, str]]:
        """What leads to tasks that may not tell it themselves any more: address, number and name of the group."""
        found: dict[bytes, tuple[str, int | None, str]] = {}
        for address, id in self.links.addresses.items():
            found[task_key(id)] = (address, None, "")
        for name in self.there["members"]:
            group = self.links.groups.get(task_id(name[:6]))
            if name[6:7] == b"m" and group is not None:
                found[name[7:]] = (found.get(name[7:], ("",))[0], group.no, group.name)
        return found

    def counters(self) -> dict[str, tuple[int, int]]:
        """What the counters say, and what is there."""
        counts, states = self.counts, self.states
        return {
            "taken": (counts.taken, states["t"]),
            "delayed": (counts.delayed, states["~"] + states[UNSTARTED]),
            "buried": (counts.buried, states["!"]),
            "total": (counts.stored, sum(states.values())),
        }

    def add(self, record: Record) -> None:
        """Count a record, and say where it must stand."""
        key, state = task_key(record.id), record.state
        self.states[state] += 1
        name = sortable(record.rank2) + key if self._second else key
        if state in "r!" and not (state == "r" and self._withdrawn(name, record)):
            self.wanted["ready" if state == "r" else "buried"][name] = (record.rank1, record.id)
        if state == "t" and not self.tube.kind.leased:
            self.wanted["delivered"][key] = (record.rank1, record.id)
        elif state == "t":
            self.wanted["taken"][key] = (record.owner or 0, record.id)
            if record.owner not in self.sessions:
                self.orphans.append((record.id, record.owner or 0))
        if record.at is not None:
            self.wanted["due"][key] = (record.at, record.id)
        if self.tube.kind.per_utube and state in "rqt":
            self._add_to_lane(record, key)
        if record.address is not None or record.group_no is not None:
            self._add_to_links(record, key)
        elif record.reason == UNREADABLE and key in self.led_to:
            self.bereft.append(key)

    def _withdrawn(self, name: bytes, record: Record) -> bool:
        """Whether a take met it after its group was cancelled."""
        group = None if record.group_no is None else self.links.groups.get(record.group_no)
        return group is not None and group.state == CANCELLING and name not in self.there["ready"]

    def _add_to_lane(self, record: Record, key: bytes) -> None:
        utube = record.utube or ""
        lane = self.lanes.setdefault(utube, LanePlace())
        if record.state == "t":
            lane.taken += 1
            return
        letter, places = (b"h", lane.heads) if record.state == "r" else (b"w", lane.waiting)
        rank2 = 0 if self.tube.fair else record.rank2
        places.append((record.rank1, rank2, record.id))
        if record.state == "r":
            lane.turns.append(record.rank2)
        label = utube.encode()
        between = sortable(rank2) if self._second and not self.tube.fair else b""
        spot = bytes([len(label)]) + label + letter + sortable(record.rank1) + between + key
        self.wanted["queue"][spot] = (0, record.id)

    def _add_to_links(self, record: Record, key: bytes) -> None:
        self.links.ties.append(Tie(record.id, record.state, record.address, record.group_no))
        if record.group_no is None:
            return
        group = task_key(record.group_no)
        self.wanted["members"][group + b"m" + key] = (0, record.id)
        if record.state == UNSTARTED:
            place = sortable(record.rank1) + (sortable(record.rank2) if self._second else b"")
            self.wanted["members"][group + b"u" + place + key] = (0, record.id)


def sortable(number: float) -> bytes:
    """Eight bytes that sort as the number does, as lua/record.lua makes them."""
    packed = struct.pack(">d", number or 0.0)
    if packed[0] < 128:
        return bytes([packed[0] + 128]) + packed[1:]
    return bytes(255 - byte for byte in packed)


def read_snapshot(runner: Runner, tube: Tube) -> Snapshot:
    """Look at a tube."""
    seen = Snapshot(tube, runner.shape(tube).letters, Links(runner, tube))
    seen.counts = count(runner, [tube])
    seen.sessions = {int(no) for no, _ in scan(runner, tube, "ends")}
    for utube, stored in scan(runner, tube, "lanes"):
        taken, heads, waiting, turn = read_lane(stored)
        seen.lanes[utube.decode()] = LanePlace((taken, heads, waiting), turn)
    for index in INDEXES:
        seen.there[index] = {name: float(score) for name, score in scan(runner, tube, index)}
    for key, value in dict(scan(runner, tube, "tasks")).items():  # a scan may show one twice
        try:
            seen.add(decode(task_id(key), value))
        except StoreCorrupt:
            seen.unreadable.append(key)
    seen.strays = _strays(runner, tube)
    return seen


def _strays(runner: Runner, tube: Tube) -> list[bytes]:
    waits, handles = runner.keys.name(tube.no, "waits"), runner.keys.name(tube.no, "handles")
    waiting = cast("list[bytes]", runner.servers.command(waits, b"HKEYS", waits))
    known = set(cast("list[bytes]", runner.servers.command(handles, b"HKEYS", handles)))
    return [handle for handle in waiting if handle not in known]

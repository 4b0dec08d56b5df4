"""Takes from one tube or several: in one step where one server has them all, else one tube after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from penstock.core.options import Tube
from penstock.errors import StoreError
from penstock.store.base import ADVANCE_STEP, Effects, Event, Taken
from penstock.store.redis.link import Reply
from penstock.store.redis.listener import Listener
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.registry import Registry
from penstock.store.redis.runner import Runner, read_pairs
from penstock.store.redis.steps import Steps

# Each is looked after first, up to a thousand tasks: more tubes than that would hold up the server for others.
MOST_TOGETHER = 16


class Wanted(NamedTuple):
    """What a take asks for, as scripts are told: the highest first rank and blocked may be ''."""

    handle: str
    most: int
    top: int | str
    blocked: str


class Takes:
    """The takes of one store."""

    def __init__(self, runner: Runner, steps: Steps, registry: Registry, outbox: Outbox, listener: Listener) -> None:
        self._runner = runner
        self._steps = steps
        self._registry = registry
        self._outbox = outbox
        self._listener = listener

    def take(self, tubes: Sequence[Tube], wanted: Wanted, now: int | None) -> Taken:
        """As the contract says."""
        effects = Effects()
        if wanted.blocked == "enter":  # before it looks in vain: the next put tells it once
            self._listener.interests.update(tube.no for tube in tubes)
        if 1 < len(tubes) <= MOST_TOGETHER and self._runner.servers.together:
            return self._together(tubes, wanted, now, effects)
        return self._in_turn(tubes, wanted, now, effects)

    def _together(self, tubes: Sequence[Tube], wanted: Wanted, now: int | None, effects: Effects) -> Taken:
        """All in one step; where a tube must learn something first, one after the other."""
        met, waits, came = self._steps.unreadable, list[int](), None
        request = self._runner.several_request(tubes, *wanted, ADVANCE_STEP, now=now)
        code, *rest = cast("list[int]", self._runner.servers.run(request, again=False))
        if code < 0:
            self._runner.known(tubes[rest[0] - 1], [code])
        if not code:
            return self._in_turn(tubes, wanted, now, effects)
        for place, answer in zip(rest[::2], cast("list[list[Reply]]", rest[1::2]), strict=True):
            alive, wait_ms, pairs = self._read(tubes[place - 1], answer, now, effects)
            waits += [wait_ms] if wait_ms >= 0 else []
            if not alive and came is None:
                return self._in_turn(tubes, wanted, now, effects)
            came = (tubes[place - 1], pairs) if pairs else came
        if came is None and self._steps.unreadable > met:
            return self._in_turn(tubes, _again(wanted), now, effects)
        return self._nothing(waits, now, effects) if came is None else _taken(*came, waits, effects)

    def _in_turn(self, tubes: Sequence[Tube], wanted: Wanted, now: int | None, effects: Effects) -> Taken:
        """One call per tube, in order, until one has work."""
        waits: list[int] = []
        for place, tube in enumerate(tubes):
            alive, wait_ms, pairs = self._take(tube, wanted, now, effects)
            waits += [wait_ms] if wait_ms >= 0 else []
            if not alive:
                return Taken(None, [], None, False, effects)
            if pairs:
                self._count_out(tubes, place, wanted, now, effects)
                return _taken(tube, pairs, waits, effects)
        return self._nothing(waits, now, effects)

    def _nothing(self, waits: list[int], now: int | None, effects: Effects) -> Taken:
        if self._outbox.rescue(effects, now):
            waits.append(0)  # look again: it may be what is wanted
        return Taken(None, [], min(waits, default=None), True, effects)

    def _take(self, tube: Tube, wanted: Wanted, now: int | None, effects: Effects) -> tuple[int, int, list[Reply]]:
        """One tube's take. A handle that the tube does not know is made known there, if its session lives."""
        met = self._steps.unreadable
        _, rest = self._steps.run("take", tube, effects, *wanted, ADVANCE_STEP, now=now)
        if not rest[0]:
            found = self._registry.enlist(wanted.handle, tube, now)
            if found is not None:
                _, rest = self._steps.run("take", tube, effects, *wanted, ADVANCE_STEP, *found, now=now)
        if self._steps.unreadable > met and rest[0] and not rest[2]:
            _, rest = self._steps.run("take", tube, effects, *_again(wanted), ADVANCE_STEP, now=now)
        return cast("tuple[int, int, list[Reply]]", tuple(rest))

    def _read(self, tube: Tube, answer: list[Reply], now: int | None, effects: Effects) -> tuple[int, int, list[Reply]]:
        return cast("tuple[int, int, list[Reply]]", tuple(self._steps.read(tube, answer, effects, now)[1]))

    def _count_out(self, tubes: Sequence[Tube], found: int, wanted: Wanted, now: int | None, effects: Effects) -> None:
        """Something came from one of several tubes: the others that counted the caller in count it out."""
        blocked, others = wanted.blocked, list[Tube]()
        if blocked in ("enter", "stay"):
            others += tubes[:found]
        if blocked in ("leave", "stay"):
            others += tubes[found + 1 :]
        for tube in others:
            try:
                self._steps.run("take", tube, effects, wanted.handle, 0, "", "leave", ADVANCE_STEP, now=now)
            except StoreError:
                pass  # the caller must have what came; there it seems to wait until its next take, or its end


def _again(wanted: Wanted) -> Wanted:
    """After bytes that could not be read were buried: what they held up may be taken now, and blocked is counted."""
    return wanted._replace(blocked="stay" if wanted.blocked in ("enter", "stay") else "")


def _taken(tube: Tube, pairs: list[Reply], waits: list[int], effects: Effects) -> Taken:
    records = read_pairs(pairs)
    effects.events += [Event(tube.no, "take", record) for record in records]
    return Taken(tube, records, min(waits, default=None), True, effects)

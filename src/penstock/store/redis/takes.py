"""Takes from one tube or several: in one script if one server has them all, else one tube after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from penstock.core.options import Tube
from penstock.core.results import ADVANCE_STEP, Effects, Event, Taken
from penstock.errors import StoreError
from penstock.store.redis.connection import Reply
from penstock.store.redis.outbox import Outbox, Steps
from penstock.store.redis.registry import Registry
from penstock.store.redis.runner import Runner, read_pairs
from penstock.store.redis.subscriber import Subscriber

# Each tube is advanced first, up to a thousand tasks: more tubes in one script would block the server for others.
MOST_TUBES = 16


class Wanted(NamedTuple):
    """What a take asks for, as script arguments: the highest first rank and blocked may be ''."""

    handle: str
    most: int
    top: int | str
    blocked: str


class Takes:
    """The takes of one store."""

    def __init__(
        self, runner: Runner, steps: Steps, registry: Registry, outbox: Outbox, subscriber: Subscriber
    ) -> None:
        self._runner = runner
        self._steps = steps
        self._registry = registry
        self._outbox = outbox
        self._subscriber = subscriber

    def take(self, tubes: Sequence[Tube], wanted: Wanted, now: int | None) -> Taken:
        """As the contract says."""
        effects = Effects()
        if wanted.blocked == "enter":  # before it finds nothing: the next put notifies it once
            self._subscriber.interests.update(tube.no for tube in tubes)
        if 1 < len(tubes) <= MOST_TUBES and self._runner.servers.one_server:
            return self._take_at_once(tubes, wanted, now, effects)
        return self._in_turn(tubes, wanted, now, effects)

    def _take_at_once(self, tubes: Sequence[Tube], wanted: Wanted, now: int | None, effects: Effects) -> Taken:
        """Take in one script; if a tube does not know the handle yet, one tube after the other."""
        met, waits, came = self._steps.unreadable, list[int](), None
        request = self._runner.take_from_many_request(tubes, *wanted, ADVANCE_STEP, now=now)
        code, *rest = cast("list[int]", self._runner.servers.run(request, idempotent=False))
        if code < 0:
            self._runner.known(tubes[rest[0] - 1], [code])
        if not code:
            return self._in_turn(tubes, wanted, now, effects)
        for place, answer in zip(rest[::2], cast("list[list[Reply]]", rest[1::2]), strict=True):
            _, (alive, wait_ms, pairs) = cast(
                "tuple[object, tuple[int, int, list[Reply]]]", self._steps.read(tubes[place - 1], answer, effects, now)
            )
            waits += [wait_ms] if wait_ms >= 0 else []
            if not alive and came is None:
                return self._in_turn(tubes, wanted, now, effects)
            came = (tubes[place - 1], pairs) if pairs else came
        if came is None and self._steps.unreadable > met:
            return self._in_turn(tubes, _retry_of(wanted), now, effects)
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
                self._unregister_others(tubes, place, wanted, now, effects)
                return _taken(tube, pairs, waits, effects)
        return self._nothing(waits, now, effects)

    def _nothing(self, waits: list[int], now: int | None, effects: Effects) -> Taken:
        if self._outbox.deliver_overdue(effects, now):
            waits.append(0)  # look again: it may be what the caller wants
        return Taken(None, [], min(waits, default=None), True, effects)

    def _take(self, tube: Tube, wanted: Wanted, now: int | None, effects: Effects) -> tuple[int, int, list[Reply]]:
        """Take from one tube. A handle that the tube does not know is registered there, if its session is alive."""
        met = self._steps.unreadable
        _, rest = self._steps.run("take", tube, effects, *wanted, ADVANCE_STEP, now=now)
        if not rest[0]:
            found = self._registry.enlist(wanted.handle, tube, now)
            if found is not None:
                _, rest = self._steps.run("take", tube, effects, *wanted, ADVANCE_STEP, *found, now=now)
        if self._steps.unreadable > met and rest[0] and not rest[2]:
            _, rest = self._steps.run("take", tube, effects, *_retry_of(wanted), ADVANCE_STEP, now=now)
        return cast("tuple[int, int, list[Reply]]", tuple(rest))

    def _unregister_others(
        self, tubes: Sequence[Tube], found: int, wanted: Wanted, now: int | None, effects: Effects
    ) -> None:
        """One of several tubes had work: unregister the caller from the others that registered it as waiting."""
        blocked, others = wanted.blocked, list[Tube]()
        if blocked in ("enter", "stay"):
            others += tubes[:found]
        if blocked in ("leave", "stay"):
            others += tubes[found + 1 :]
        for tube in others:
            try:
                self._steps.run("take", tube, effects, wanted.handle, 0, "", "leave", ADVANCE_STEP, now=now)
            except StoreError:
                pass  # the caller must get its tasks; there it seems to wait until its next take, or its end


def _retry_of(wanted: Wanted) -> Wanted:
    """The retry after unreadable bytes were buried: tasks behind them may be taken now, and the wait is registered."""
    return wanted._replace(blocked="stay" if wanted.blocked in ("enter", "stay") else "")


def _taken(tube: Tube, pairs: list[Reply], waits: list[int], effects: Effects) -> Taken:
    records = read_pairs(pairs)
    effects.events += [Event(tube.no, "take", record) for record in records]
    return Taken(tube, records, min(waits, default=None), True, effects)

"""Steps of a tube: a script run, what it did read, and its replies to other tubes put there before anybody is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import Effects
from penstock.store.redis.link import Argument, Reply
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.record import UNREADABLE
from penstock.store.redis.runner import Runner, read_log

# The place of `removed` in an answer, which is -1 where a step was refused.
_REMOVED = 2


class Steps:
    """The scripts of one store that change tasks."""

    def __init__(self, runner: Runner, outbox: Outbox) -> None:
        self._runner = runner
        self._outbox = outbox
        #: Told of a tube where a step met bytes that penstock did not write; how often that was.
        self.on_unreadable: Callable[[Tube, int | None], None] | None = None
        self.unreadable = 0

    def run(
        self, name: str, tube: Tube, effects: Effects, *arguments: Argument, again: bool = False, now: int | None = None
    ) -> tuple[list[Record], list[Reply]]:
        """Add what a script did to the effects; its changes as records, in order, and the rest of its answer."""
        reply = self._runner.on_tube(name, tube, *arguments, again=again, now=now)
        return self.read(tube, reply, effects, now)

    def attempt(
        self, name: str, tube: Tube, effects: Effects, *arguments: Argument, now: int | None = None
    ) -> tuple[list[Record] | None, list[Reply]]:
        """The same of one that may be refused: None, and why."""
        reply = self._runner.on_tube(name, tube, *arguments, now=now)
        if reply[_REMOVED] == -1:
            return None, reply[_REMOVED + 1 :]
        return self.read(tube, reply, effects, now)

    def read(
        self, tube: Tube, reply: list[Reply], effects: Effects, now: int | None
    ) -> tuple[list[Record], list[Reply]]:
        """The same of an answer that is there."""
        records = read_log(tube, reply, effects)
        if reply[4]:
            groups, letters = cast("tuple[list[int], list[bytes]]", tuple(cast("list[Reply]", reply[4])))
            effects.ended += [("group", tube.no, no) for no in groups]
            self._outbox.deliver(tube.no, letters, effects, now)
        if self.on_unreadable and UNREADABLE in [record.reason for record in records if record.state == "!"]:
            self.unreadable += 1
            self.on_unreadable(tube, now)
        return records, reply[5:]

"""Scripts that change tasks, with what they did: events, wake-ups, and replies to other tubes.

Replies are put into their tubes before anybody is notified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from penstock.core.options import Tube
from penstock.core.results import Effects
from penstock.core.task import Record
from penstock.store.redis.connection import Argument, Reply
from penstock.store.redis.encoding import UNREADABLE
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.runner import Runner, read_log

# The position of `removed` in an answer; it is -1 if a script refused.
_REMOVED = 2


class Steps:
    """Runs the scripts of one store that change tasks."""

    def __init__(self, runner: Runner, outbox: Outbox) -> None:
        self._runner = runner
        self._outbox = outbox
        #: Called with a tube where a script found bytes that penstock did not write; and how often that happened.
        self.on_unreadable: Callable[[Tube, int | None], None] | None = None
        self.unreadable = 0

    def run(
        self, name: str, tube: Tube, effects: Effects, *arguments: Argument,
        idempotent: bool = False, now: int | None = None,
    ) -> tuple[list[Record], list[Reply]]:  # fmt: skip
        """Run a script and add what it did to the effects. Returns its changes as records, and its further answer."""
        reply = self._runner.on_tube(name, tube, *arguments, idempotent=idempotent, now=now)
        return self.read(tube, reply, effects, now)

    def attempt(
        self, name: str, tube: Tube, effects: Effects, *arguments: Argument, now: int | None = None
    ) -> tuple[list[Record] | None, list[Reply]]:
        """The same for a script that may refuse: then None, and why."""
        reply = self._runner.on_tube(name, tube, *arguments, now=now)
        if reply[_REMOVED] == -1:
            return None, reply[_REMOVED + 1 :]
        return self.read(tube, reply, effects, now)

    def read(
        self, tube: Tube, reply: list[Reply], effects: Effects, now: int | None
    ) -> tuple[list[Record], list[Reply]]:
        """The same for an answer that was received already."""
        records = read_log(tube, reply, effects)
        if reply[4]:
            groups, entries = cast("tuple[list[int], list[bytes]]", tuple(cast("list[Reply]", reply[4])))
            effects.ended += [("group", tube.no, no) for no in groups]
            self._outbox.deliver(tube.no, entries, effects, now)
        if self.on_unreadable and UNREADABLE in [record.reason for record in records if record.state == "!"]:
            self.unreadable += 1
            self.on_unreadable(tube, now)
        return records, reply[5:]

"""Groups as programs hold them: tasks of one tube that start together and have end work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

import msgspec

from penstock.core import group as rules
from penstock.core import names
from penstock.core.entry import encode_payload
from penstock.core.group import Group as StoredGroup
from penstock.core.numbers import Seconds
from penstock.core.numbers import timeout as check_timeout
from penstock.core.options import TimedOptions
from penstock.core.options import Tube as StoredTube
from penstock.core.task import Entry, Task, make_task
from penstock.errors import BadValue, NotFound
from penstock.operations.operation import Call, Operation, blocking
from penstock.operations.store_ops import put_items

if TYPE_CHECKING:
    from penstock.broker.tube import Tube


class Progress(msgspec.Struct, frozen=True):
    """How many of a group's tasks have left the tube, of how many; its end work is not among them."""

    done: int
    total: int


class Group:
    """Work that nobody takes before `start`, and what follows when all of it is gone."""

    def __init__(self, tube: Tube, name: str) -> None:
        self._tube = tube
        self._runtime = tube.runtime
        opened = self._runtime.store.open_group(self._stored, names.name("group", name))
        self._no = opened.no
        self._name = opened.name

    @property
    def _stored(self) -> StoredTube:
        return self._tube.stored

    @property
    def name(self) -> str:
        """The group's name."""
        return self._name

    def __repr__(self) -> str:
        return f"<Group {self.name} of {self._tube.name}>"

    @blocking
    def put(self, data: object, *, timeout: Seconds | None = 0, **options: Unpack[TimedOptions]) -> Operation[Task]:
        """Add one task, as Tube.put does; NotFound when the group has ended."""
        tasks = yield from self._put([(data, {})], timeout, options)
        return tasks[0]

    @blocking
    def put_many(
        self, items: Iterable[object], *, timeout: Seconds | None = 0, **shared: Unpack[TimedOptions]
    ) -> Operation[list[Task]]:
        """Add many tasks, as Tube.put_many does; NotFound when the group has ended."""
        return (yield from self._put(items, timeout, shared))

    def on_end(self, data: object) -> None:
        """Put this once the group was started and nothing of it is left; a later call replaces it."""
        self._set(end=encode_payload(self._stored, "data", data))

    def on_cancel(self, data: object) -> None:
        """Put this once the group was cancelled and nothing of it is left; a later call replaces it."""
        self._set(cancel=encode_payload(self._stored, "data", data))

    def start(self) -> None:
        """Let its work be taken. An empty group ends at once. A second time does nothing."""
        self._turn(rules.STARTED)

    def cancel(self) -> None:
        """Remove all its work, also what is taken. A second time, or after its end, does nothing."""
        self._turn(rules.CANCELLING)

    def progress(self) -> Progress:
        """How far it is, now."""
        self._runtime.reap_if_due()
        self._runtime.apply_due(self._stored)
        group = self._record()
        return Progress(group.total - group.left, group.total)

    @blocking
    def wait(self, timeout: Seconds | None = None) -> Operation[str]:
        """ "done" when its end work is put, "cancelled" when it was cancelled and all its work is gone.

        TimeoutError when neither comes in time.
        """
        limit = check_timeout(timeout)

        def look() -> Operation[str | None]:
            group: StoredGroup = yield Call(self._record, ("group", self._stored.no))
            return group.state if group.state in rules.OVER else None

        state = yield from self._runtime.wait_for(("group", self._stored.no, self._no), self._stored, look, limit)
        if state is None:
            raise TimeoutError(f"group {self.name} of tube {self._tube.name} did not end within {limit:g} s")
        return state

    def _record(self) -> StoredGroup:
        found = self._runtime.store.groups(self._stored, no=self._no)
        if not found:
            raise self._ended()
        return found[0]

    def _set(self, *, end: bytes | None = None, cancel: bytes | None = None) -> None:
        if self._runtime.store.change_group(self._stored, self._no, end=end, cancel=cancel) is None:
            raise self._ended()

    def _turn(self, to: str) -> None:
        turned = self._runtime.store.change_group(self._stored, self._no, to=to)
        if turned is None:  # it ended long ago
            return
        self._runtime.publish(turned.effects)
        if turned.more:  # blocked takes move the rest
            self._runtime.note_deadline((("ready", self._stored.no),), 0)

    def _put(self, items: Iterable[object], timeout: Seconds | None, options: TimedOptions) -> Operation[list[Task]]:
        mine = self._mine(options)
        records = yield from put_items(self._runtime, self._stored, items, timeout, mine, self._bind)
        return [make_task(record, self._tube) for record in records]

    def _mine(self, options: TimedOptions) -> TimedOptions:
        if options.get("group") is not None:
            raise self._foreign(options["group"])
        return {**options, "group": self.name}

    def _bind(self, entry: Entry) -> Entry:
        if entry.group != self.name:
            raise self._foreign(entry.group)
        return msgspec.structs.replace(entry, group_no=self._no)

    def _foreign(self, given: object) -> BadValue:
        return BadValue(f"group {names.shown(given)} is given to a put of group {self.name}: leave it out")

    def _ended(self) -> NotFound:
        return rules.ended(self.name)

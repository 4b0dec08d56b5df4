"""The handle of a group: tasks of one tube that start together, and the work to put when they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Unpack

import msgspec

from penstock.broker.outcome import Outcome, buried_outcome, make_outcome
from penstock.core import group as rules
from penstock.core import names
from penstock.core.entry import encode_payload
from penstock.core.group import Group as StoredGroup
from penstock.core.options import TimedOptions
from penstock.core.options import Tube as StoredTube
from penstock.core.task import Entry, Task, make_task
from penstock.core.values import Seconds
from penstock.core.values import timeout as check_timeout
from penstock.errors import BadValue, NotFound
from penstock.operations.operation import Call, Operation, blocking
from penstock.operations.store_ops import put_items

if TYPE_CHECKING:
    from penstock.broker.tube import Tube

_STATUS = {
    rules.OPEN: "open", rules.STARTED: "running", rules.CANCELLING: "cancelled", rules.CANCELLED: "cancelled",
    rules.DONE: "done",
}  # fmt: skip
# Results that are read in one call.
_PAGE = 100


class Progress(msgspec.Struct, frozen=True):
    """The progress of a group: how many of its tasks have ended, how many it has, how many failed. Without end work."""

    done: int
    total: int
    failed: int = 0


class Group:
    """Tasks that cannot be taken before `start`, and the work to put when all of them are gone."""

    def __init__(self, tube: Tube, name: str, *, create: bool = True, on_failure: str | None = None) -> None:
        self._tube = tube
        self._runtime = tube.runtime
        opened = self._open(names.name("group", name), create, on_failure)
        self._no = opened.no
        self._name = opened.name

    def _open(self, name: str, create: bool, on_failure: str | None) -> StoredGroup:
        if create:
            return self._runtime.store.open_group(self._stored, name, on_failure=on_failure)
        found = self._runtime.store.groups(self._stored, name=name)
        if not found:
            raise NotFound(f"no group {name} in tube {self._tube.name}: it never existed, or is past the retention")
        return found[0]

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
        """Add one task, as Tube.put does; NotFound if the group has ended."""
        tasks = yield from self._put([(data, {})], timeout, options)
        return tasks[0]

    @blocking
    def put_many(
        self, items: Iterable[object], *, timeout: Seconds | None = 0, **shared: Unpack[TimedOptions]
    ) -> Operation[list[Task]]:
        """Add many tasks, as Tube.put_many does; NotFound if the group has ended."""
        return (yield from self._put(items, timeout, shared))

    def on_end(self, data: object) -> None:
        """Set the data to put when the started group has no task left; a later call replaces it."""
        self._set(end=encode_payload(self._stored, "data", data))

    def on_cancel(self, data: object) -> None:
        """Set the data to put when the cancelled group has no task left; a later call replaces it."""
        self._set(cancel=encode_payload(self._stored, "data", data))

    def start(self) -> None:
        """Start the group: its tasks can be taken. An empty group ends at once. A second call does nothing."""
        self._turn(rules.STARTED)

    def cancel(self) -> None:
        """Remove all tasks of the group, including taken ones. Does nothing if it was cancelled before or has ended."""
        self._turn(rules.CANCELLING)

    def progress(self) -> Progress:
        """Read how many tasks are done, how many there are, and how many failed."""
        self._runtime.reap_if_due()
        self._runtime.apply_due(self._stored)
        group = self._record()
        return Progress(group.total - group.left, group.total, group.failed)

    @property
    def status(self) -> str:
        """ "open", "running" once it is started, "done", or "cancelled" as soon as cancel is called."""
        return _STATUS[self._record().state]

    def results(self) -> Iterator[tuple[int, Outcome]]:
        """The id and the outcome of each task that has ended or is buried, in put order, read page by page.

        Only for tasks put by `app.group`: the outcomes of others are kept by their own addresses.
        """
        store, total = self._runtime.store, self._record().total
        for start in range(0, total, _PAGE):
            places = range(start, min(start + _PAGE, total))
            found = store.outcomes(self._stored, [member_address(self, place) for place in places])
            live = [lookup.id for lookup in found if lookup.id is not None]
            buried = {record.id: record for record in store.get(self._stored, live) if record and record.state == "!"}
            for lookup in found:
                if lookup.ending is not None and lookup.last is not None:
                    yield lookup.last, make_outcome(lookup.ending)
                elif lookup.id in buried:
                    yield lookup.id, buried_outcome(buried[lookup.id])

    @blocking
    def wait(self, timeout: Seconds | None = None) -> Operation[str]:
        """Wait until the group has ended. Returns "done" or, if it was cancelled, "cancelled".

        Its end work or cancel work is put by then. Raises TimeoutError if the group does not end in time.
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
        if not found or found[0].name != self._name:
            raise self._ended()
        return found[0]

    def _set(self, *, end: bytes | None = None, cancel: bytes | None = None) -> None:
        if self._runtime.store.change_group(self._stored, self._no, self._name, end=end, cancel=cancel) is None:
            raise self._ended()

    def _turn(self, to: str) -> None:
        turned = self._runtime.store.change_group(self._stored, self._no, self._name, to=to)
        if turned is None:  # it ended long ago
            return
        self._runtime.publish(turned.effects)
        if turned.more:  # blocked takes move the rest
            self._runtime.note_deadline((("ready", self._stored.no),), 0)

    def _put(self, items: Iterable[object], timeout: Seconds | None, options: TimedOptions) -> Operation[list[Task]]:
        mine = self._member_options(options)
        records = yield from put_items(self._runtime, self._stored, items, timeout, mine, self._bind)
        return [make_task(record, self._tube) for record in records]

    def _member_options(self, options: TimedOptions) -> TimedOptions:
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


def member_address(group: Group, place: int) -> str:
    """Internal: the address of the task that `app.group` puts at that place, by which `results` finds it."""
    return rules.member_address(group._no, place)

"""Groups of calls: they start together, and one more call follows when all have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from penstock.app.app_connection import AppConnection
from penstock.app.call import Call, must_be_call
from penstock.app.handle import Handle
from penstock.app.tracing import PutSpan
from penstock.broker.group_handle import Group, Progress, member_address
from penstock.broker.outcome import Outcome
from penstock.broker.tube import Tube
from penstock.core import group as rules
from penstock.core import names
from penstock.core.shards import refuse_sharded
from penstock.errors import BadValue

R = TypeVar("R")


class CallGroup:
    """A group of calls (`app.group(name)`). Nothing is stored before the first put; leaving the block starts it."""

    def __init__(self, connection: AppConnection, name: str, tube: str | None, on_failure: str) -> None:
        if on_failure not in rules.ON_FAILURE:
            raise BadValue(f"on_failure {names.shown(on_failure)} is unknown: give {', '.join(rules.ON_FAILURE)}")
        self.name = names.name("group", name)
        self._connection = connection
        self._tube_name = None if tube is None else names.name("tube", tube)
        self._on_failure = on_failure
        self._group: Group | None = None
        self._empty = "open"  # the status while nothing is stored
        self._count = 0

    def __repr__(self) -> str:
        return f"<group {self.name} of calls>"

    def __enter__(self) -> CallGroup:
        if self._tube_name is not None:
            stored = self._open(self._tube_name)
            found = stored.runtime.store.groups(stored.stored, name=self.name)
            if found and found[0].state in rules.LIVE:
                raise rules.group_exists(self.name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.start()
        else:
            self.cancel()

    def put(self, call: Call[R]) -> Handle[R]:
        """Add a call. Raises NotFound if the group has ended."""
        return self.put_many([call])[0]

    def put_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Add calls in one step."""
        given = list(calls)
        if not given:
            return []
        [tube, *_] = [self._tube(call) for call in given]
        items = [call.item(tube) for call in given]
        group = self._begin(tube)
        with PutSpan(given[0].handler.name, tube.name, len(given)) as span:
            members: list[tuple[object, object]] = [
                ({**data, **span.fields}, {**options, "address": member_address(group, place)})
                for place, (data, options) in enumerate(items, self._count)
            ]
            tasks = group.put_many(members)
        self._count += len(tasks)
        handles = [Handle(call.handler, tube, task.id) for call, task in zip(given, tasks, strict=True)]
        given[0].handler.hooks.was_put(handles)
        return handles

    def then(self, call: Call[Any]) -> None:
        """Set the call that is put when all others have ended; a second `then` replaces the first."""
        tube = self._tube(call)
        if call.put_options:
            raise BadValue(f"then of group {self.name} accepts no put options: remove {', '.join(call.put_options)}")
        data, _ = call.item(tube)
        with PutSpan(call.handler.name, tube.name, 1) as span:
            self._begin(tube).on_end({**data, **span.fields})

    def start(self) -> None:
        """Start the calls. Leaving the `with` block does this."""
        if self._group is None:
            self._empty = "done"
        else:
            self._group.start()
            if self._connection.eager is not None:
                self._connection.eager()

    def cancel(self) -> None:
        """Cancel all calls, including running ones."""
        if self._group is None:
            self._empty = "cancelled"
        else:
            self._group.cancel()

    @property
    def status(self) -> str:
        """ "open", "running", "done" or "cancelled"; a group that is started without calls is done."""
        return self._empty if self._group is None else self._group.status

    def progress(self) -> Progress:
        """The numbers of calls, of ended calls and of failed calls."""
        return Progress(0, 0) if self._group is None else self._group.progress()

    def results(self) -> Iterator[tuple[int, Outcome]]:
        """The id and the outcome of each call that has ended, in put order, read page by page."""
        return iter(()) if self._group is None else self._group.results()

    def wait(self, timeout: float | None = None) -> str:
        """Wait until all calls have ended and `then` is put ("done"), or the group is cancelled ("cancelled").

        Raises TimeoutError if neither happens in time.
        """
        if self._group is None:
            return "cancelled" if self._empty == "cancelled" else "done"
        return self._group.wait(timeout)

    def _tube(self, call: Call[Any]) -> Tube:
        """The group's tube. Raises BadValue if the call has another tube or app, or options that the group sets."""
        must_be_call(call)
        wanted = call.handler.rules.tube
        if self._tube_name is None:
            self._tube_name = wanted
        if wanted != self._tube_name or call.handler.connection is not self._connection:
            raise BadValue(
                f"{call.handler.name} uses tube {wanted}, but group {self.name} is in tube {self._tube_name}: "
                "the calls of a group must have the same tube and app"
            )
        for option in ("address", "group", "on_duplicate"):
            if call.put_options.get(option) is not None:
                raise BadValue(
                    f"{call.handler.name} has {option}, but group {self.name} sets its calls' addresses: "
                    f"remove {option}"
                )
        return self._open(wanted)

    def _open(self, name: str) -> Tube:
        tube = self._connection.tube(name)
        refuse_sharded("groups", name, tube.stored.shards)
        return tube

    def _begin(self, tube: Tube) -> Group:
        if self._group is None:
            self._group = Group(tube, self.name, on_failure=self._on_failure)
        return self._group

"""How a tube's tasks are looked at, and counted: as they stand once everything that is due has been done to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.broker import why
from penstock.broker.settling import Settling, TaskOrId
from penstock.broker.stats import TubeStats, make_stats
from penstock.core import names
from penstock.core.numbers import whole
from penstock.core.select import Find
from penstock.core.task import Facts, Record, Status, Task, make_task
from penstock.errors import BadValue

if TYPE_CHECKING:
    from penstock.runtime.runtime import Hub

# tasks() gives so many unless told otherwise, and asks a store for at most so many at once.
PAGE, MAX_PAGE = 100, 10_000


class Looking(Settling):
    """The part of a tube's handle that changes nothing but what time does."""

    _hub: Hub

    def peek(self, id: TaskOrId) -> Task:
        """The task as it stands, whoever has it; NotFound when it is not in the tube."""
        record = self._current(id)
        if record is None:
            raise self._not_found(id.id if isinstance(id, Facts) else id)
        return make_task(record, self)

    def _current(self, id: TaskOrId) -> Record | None:
        """The task as it stands after everything that is due has been done to it."""
        self._hub.tend()
        record = self._get(id)
        if record is None or (record.at is None and record.state != "t" and record.group is None):
            return record
        self._hub.catch_up(self._stored)
        return self._get(id)

    def _get(self, id: TaskOrId) -> Record | None:
        number = self._own(id).id if isinstance(id, Facts) else names.task_id(id)
        return self._hub.store.get(self._stored, [number])[0]

    def _number(self, id: TaskOrId) -> int:
        """The store's own number of a task, which orders them."""
        return id._record.id if isinstance(id, Facts) else names.task_id(id)

    def tasks(
        self, status: Status | str | None = None, *, limit: int | None = PAGE, after: TaskOrId | None = None
    ) -> list[Task]:
        """Up to limit tasks in id order, of one status if given; go on with `after` the last one's id."""
        if status is not None and status not in list(Status):
            raise BadValue(f"status {names.shown(status)} is unknown: use one of {', '.join(map(repr, Status))}")
        most = PAGE if limit is None else whole("limit", limit)
        last = None if after is None else self._number(after)
        if status == Status.DONE:
            return []
        self._hub.tend()
        self._hub.catch_up(self._stored)
        letter = None if status is None else str(status)
        return [make_task(record, self) for record in self._found(letter, last, most)]

    def _found(self, state: str | None, last: int | None, limit: int) -> Iterator[Record]:
        """Page by page, so that no store has to answer more at once than it should."""
        while limit > 0:
            page = self._hub.store.find(self._stored, Find(state, max(last or 0, 0), min(limit, MAX_PAGE)))
            yield from page
            if len(page) < MAX_PAGE:
                return
            last, limit = page[-1].id, limit - MAX_PAGE

    def stats(self) -> TubeStats:
        """The tube's counters now, exact; what is due is done first."""
        self._hub.tend()
        self._hub.catch_up(self._stored)
        return make_stats(self._hub.store.count(self._stored))

    def __len__(self) -> int:
        return self.stats().tasks.total

    def __bool__(self) -> bool:
        return True  # an empty tube is still a tube

    def __contains__(self, id: object) -> bool:
        return self._current(id) is not None  # type: ignore[arg-type]

    def why(self, id: TaskOrId) -> str:
        """Why this task is not running: what holds it back, who, since when, until when."""
        return why.explain(self._hub.store, self._stored, self.peek(id)._record)

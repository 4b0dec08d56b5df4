"""Responses of bounded size: pages and takes that end when they hold enough bytes.

A page has at least one task if there is one, so a caller that continues after the last task reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from penstock.broker.tube import Tube, find_records, per_call, task_number
from penstock.core import codec
from penstock.core.select import Deliveries
from penstock.core.task import Facts, Record, Task, make_task, record_of
from penstock.core.values import MAX_WHOLE, span_ms, whole
from penstock.errors import PenstockError
from penstock.operations.operation import Operation

MEBIBYTE = 1024 * 1024
# A response ends with the task that makes it larger than this.
PAGE_BYTES = 8 * MEBIBYTE
# How many responses of that size are made at the same time.
MAX_LARGE_READS = 4
# The approximate size of a task in a response, besides its data.
TASK_BYTES = 256
# One store call takes at most this much, if every task is as large as its tube allows.
TAKE_BYTES = 256 * MEBIBYTE


class Page(NamedTuple):
    """Tasks, and whether there may be more."""

    tasks: list[Task]
    more: bool


def read_tasks(tube: Tube, status: str | None, limit: int, after: int | str | None) -> Page:
    """Tasks in id order, of one status if given. Their JSON is checked and not decoded."""
    found = list(until_full(find_records(tube, status, limit, 0 if after is None else task_number(tube, after))))
    more = len(found) == limit or sum(map(response_size, found)) > PAGE_BYTES
    return Page([undecoded(tube, record) for record in found], more)


def inspect_tasks(tube: Tube, start: int, count: int, pending: bool) -> list[Task]:
    """Part of a list of kind reliable, cut if it is too large."""
    if tube.stored.kind.name != "reliable":
        tube.inspect(start, count, pending)  # raises UnsupportedOption
    return [undecoded(tube, record) for record in until_full(_deliveries(tube, start, count, pending))]


def _deliveries(tube: Tube, start: int, count: int, pending: bool) -> Iterator[Record]:
    place, left = whole("start", start, -MAX_WHOLE, MAX_WHOLE), whole("count", count)
    while left > 0:
        want = min(left, per_call(tube.stored))
        part = tube.runtime.store.find(tube.stored, Deliveries(place, want, pending))
        yield from part
        if len(part) < want or place < 0 <= place + want:
            return
        place, left = place + want, left - want


def take_tasks(tube: Tube, count: int, timeout: float | None = 0, max_pri: int | None = None) -> Operation[list[Task]]:
    """Like `tube.take_many`, but fewer tasks if their total size is too large."""
    take: Callable[..., Operation[list[Task]]] = type(tube).take_many.operation  # type: ignore[attr-defined]
    tasks: list[Task] = []
    while True:
        want = min(whole("count", count) - len(tasks), per_call(tube.stored, TAKE_BYTES))
        try:
            got = yield from take(tube, want, 0 if tasks else timeout, max_pri=max_pri)
        except PenstockError:
            if not tasks:
                raise
            return tasks
        tasks += got
        if len(got) < want or len(tasks) == count or is_full(tasks):
            return tasks


def is_full(tasks: Iterable[Facts[Any]]) -> bool:
    """Whether the tasks have reached the size limit of one response."""
    return sum(response_size(record_of(task)) for task in tasks) > PAGE_BYTES


def recover_tasks(tube: Tube, count: int, elapsed: float) -> list[Task]:
    """Like `tube.recover`, but fewer tasks if their total size is too large."""
    if tube.stored.kind.name == "reliable" and whole("count", count) > per_call(tube.stored):
        span_ms("elapsed", elapsed)
        count = max(1, sum(1 for _ in until_full(_deliveries(tube, 0, count, True))))
    return tube.recover(count, elapsed)


def response_size(record: Record) -> int:
    """The approximate size of a task in a response."""
    return len(record.payload) + len(record.reason or "") + len(record.errors or b"") + TASK_BYTES


def until_full(records: Iterable[Record]) -> Iterator[Record]:
    """The first records, until their total size is too large."""
    size = 0
    for record in records:
        yield record
        size += response_size(record)
        if size > PAGE_BYTES:
            return


def undecoded(tube: Tube, record: Record) -> Task:
    """A task whose JSON stays text, because decoded it may be twenty times as large. Damaged data is shown as bytes."""
    if codec.is_raw(record.payload):
        return make_task(record, tube)
    try:
        record.payload.decode()
        return Task(record, tube, msgspec.json.decode(record.payload, type=msgspec.Raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Task(record, tube, record.payload)

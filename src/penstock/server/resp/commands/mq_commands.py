"""MQ.*: the reliable queues of the Redis module RedisMQ, on tubes of kind reliable.

Messages do not belong to a session: anyone who knows an id may ack it. So calls of all connections can share store
calls, and consecutive calls of a pipeline become one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from penstock.broker.tube import Tube
from penstock.broker.tube_factory import make_handle, open_tube
from penstock.core.ids import message_id
from penstock.core.names import queue_name
from penstock.core.task import Task, record_of
from penstock.core.values import MAX_SECONDS, MAX_WHOLE
from penstock.errors import BadValue, NoSuchTube
from penstock.server.auth import Role
from penstock.server.paging import inspect_tasks, recover_tasks, take_tasks
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args, text
from penstock.server.resp.commands.command import Command, by_tube, single
from penstock.server.resp.commands.task_commands import payload
from penstock.server.resp.replies import Fault, Refused, Reply, fault_of

R = TypeVar("R")

KIND = "reliable"
_WHOLE = re.compile(rb"-?(0|[1-9][0-9]{0,18})")


async def _push(session: Session, calls: Sequence[Args]) -> list[Reply]:
    elements = [element for args in calls for element in args[1:]]

    async def put(queue: Tube) -> list[Task]:
        return await session.service.ask(queue.put_many, elements)

    tasks = await _on_queue(session, calls[0][0], put, create=True)
    ids = [record_of(task).address for task in tasks or ()]
    if len(ids) == len(calls):  # one element per call, as in most pipelines
        return [[id] for id in ids]
    rest = iter(ids)
    return [list(islice(rest, len(args) - 1)) for args in calls]


async def _pop(session: Session, calls: Sequence[Args]) -> list[Reply]:
    counts = [_count(args[0]) for args in calls]

    async def take(queue: Tube) -> list[Task]:
        return await session.service.run(take_tasks(queue, sum(counts)))

    tasks = iter(await _on_queue(session, calls[0][1], take) or ())
    return [[_pair(task) for task in islice(tasks, count)] or None for count in counts]


def _takes_out(args: Args) -> int:
    return int(args[0]) if _WHOLE.fullmatch(args[0]) else 1


async def _ack(session: Session, calls: Sequence[Args]) -> list[Reply]:
    given = [_ids(args[1:]) for args in calls]

    async def ack(queue: Tube) -> list[bool] | list[str]:
        known = [id for ids in given if not isinstance(ids, Fault) for id in ids]
        return await session.service.ask(queue.ack_many, known)

    acked = await _on_queue(session, calls[0][0], ack)
    if acked is None:
        return [[] for _ in calls]
    removed = [str(id) for id in acked][::-1]  # reversed to pop in order; an id given twice counts for the first call
    return [
        ids if isinstance(ids, Fault) else [removed.pop() for id in ids if removed and removed[-1] == id]
        for ids in given
    ]


def _ids(words: Args) -> list[str] | Fault:
    """The valid ids among these words. Invalid ones are skipped like unknown ids; an error if all are invalid."""
    ids: list[str] = []
    fault = None
    for word in words:
        try:
            ids.append(message_id(text("task id", word)))
        except BadValue as error:
            fault = fault or fault_of(error)
    return ids if ids or fault is None else fault


async def _recover(session: Session, args: Args) -> Reply:
    count, elapsed = _count(args[1]), _integer(args[2], MAX_SECONDS * 1000)
    if elapsed < 0:
        raise Refused("ERR", "value is out of range, must be positive")

    async def recover(queue: Tube) -> list[Task]:
        return await session.service.ask(recover_tasks, queue, count, elapsed / 1000)

    return [_pair(task) for task in await _on_queue(session, args[0], recover) or ()]


async def _inspect(session: Session, args: Args) -> Reply:
    pending = len(args) == 4
    if len(args) > 4:
        raise Refused("ERR", "wrong number of arguments for 'mq.inspect' command")
    if pending and args[1].upper() != b"PENDING":
        raise Refused("ERR", "syntax error")
    start, count = _integer(args[-2]), _count(args[-1])

    async def inspect(queue: Tube) -> tuple[list[Task], int]:
        return await session.service.ask(_inspect_page, queue, start, count, pending)

    tasks, now = await _on_queue(session, args[0], inspect) or ([], 0)
    return [_delivery(task, now) if pending else _pair(task) for task in tasks]


def _inspect_page(queue: Tube, start: int, count: int, pending: bool) -> tuple[list[Task], int]:
    tasks = inspect_tasks(queue, start, count, pending)
    return tasks, queue.runtime.store.now() if pending else 0


def _pair(task: Task) -> Reply:
    return [record_of(task).address, payload(task)]


def _delivery(task: Task, now: int) -> Reply:
    taken = record_of(task).taken or 0
    return [record_of(task).address, payload(task), taken, max(0, now - taken), task.attempts]


async def _on_queue(
    session: Session, key: bytes, act: Callable[[Tube], Awaitable[R]], *, create: bool = False
) -> R | None:
    """Run an action on the queue. Returns None if there is no such queue. A dropped queue is looked up again."""
    for refresh in (False, True):
        queue = await _queue(session, key, create=create, refresh=refresh)
        if queue is None:
            return None
        try:
            return await act(queue)
        except NoSuchTube:
            if refresh:
                raise
    return None


async def _queue(session: Session, key: bytes, *, create: bool, refresh: bool) -> Tube | None:
    service = session.service
    name = queue_name(text("key", key))
    stored = await service.find(name, refresh=refresh)
    if stored is None and create:
        await service.ask(open_tube, service.runtime, service.session_handle, name, KIND, {})
        stored = await service.find(name, refresh=True)
    if stored is None:
        return None
    if stored.kind.name != KIND:
        raise Refused("WRONGTYPE", "Operation against a key holding the wrong kind of value")
    return make_handle(service.runtime, service.session_handle, stored)


def _integer(raw: bytes, most: int = MAX_WHOLE) -> int:
    if not _WHOLE.fullmatch(raw) or abs(int(raw)) > most:
        raise Refused("ERR", "value is not an integer or out of range")
    return int(raw)


@lru_cache(1000)  # the calls of a pipeline usually have the same count
def _count(raw: bytes) -> int:
    count = _integer(raw)
    if count < 1:
        raise Refused("ERR", "value is out of range, must be positive")
    return count


COMMANDS = (
    Command("MQ.PUSH", -3, _push, tube_at=1, joins=by_tube, usage="key element [element ...]"),
    Command("MQ.POP", 3, _pop, tube_at=2, joins=lambda args: args[1], takes_out=_takes_out, usage="count key"),
    Command("MQ.ACK", -3, _ack, tube_at=1, joins=by_tube, usage="key id [id ...]"),
    Command("MQ.RECOVER", 4, single(_recover), tube_at=1, usage="key count milliseconds"),
    Command("MQ.INSPECT", -4, single(_inspect), Role.READ, tube_at=1, large=True, usage="key [PENDING] start count"),
)

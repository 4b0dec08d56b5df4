"""The operations on tasks: put, take, settle, look."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock import aio
from penstock.broker import admin
from penstock.broker.tube import Tube, per_call
from penstock.core.lease import HandOut, hand_out
from penstock.core.lifecycle import LEASED_VERBS
from penstock.errors import BadValue, NotTaken, PenstockError
from penstock.server.http import requests, responses
from penstock.server.http.operations import Call
from penstock.server.http.responses import Acked, Sentence, Settled, TakenTasks, TaskAnswer, TaskList
from penstock.server.paging import TAKE_BYTES, inspect_tasks, is_full, read_tasks, recover_tasks

# The kinds whose ids are text; those of all others are integers.
_TEXT_IDS = frozenset({"round", "reliable"})


async def put(call: Call, body: requests.PutOne) -> TaskAnswer:
    """Put a task. A missing tube is created with the default kind."""
    data, options = body.payload(), body.options()
    tube = await call.access.tube(call.path["name"], call.session, to_put=[(data, options)])
    work = tube.put(data, timeout=body.timeout, **options)
    return responses.task(await (call.while_connected(work) if body.timeout else work))


async def put_many(call: Call, body: requests.PutMany) -> TaskList:
    """Put many tasks, all or none. A missing tube is created with the default kind."""
    items = [(task.payload(), task.options()) for task in body.tasks]
    tube = await call.access.tube(call.path["name"], call.session, to_put=items)
    work = tube.put_many(items, timeout=body.timeout)
    return TaskList([responses.task(task) for task in await (call.while_connected(work) if body.timeout else work)])


async def take(call: Call, body: requests.Take) -> TaskAnswer | TakenTasks | None:
    """Take the first ready task, or up to `count` tasks; 204 if none became ready in time."""
    tube = await call.access.tube(call.path["name"], call.session)
    count = body.count or 1
    most = min(count, per_call(tube.stored, TAKE_BYTES))
    work = tube.take_many(most, body.timeout or 0, max_pri=body.max_pri)
    got = tasks = await (call.while_connected(work) if body.timeout else work)
    while len(got) == most and len(tasks) < count and not is_full(tasks):
        try:
            got = await tube.take_many(min(most, count - len(tasks)), 0, max_pri=body.max_pri)
        except PenstockError:
            break  # return the tasks taken so far
        tasks = tasks + got
    taken = await _handed_out(call, tasks)
    if not taken:
        return None
    return TakenTasks(taken, call.session.session_handle.id) if body.count is not None else taken[0]


async def take_first(call: Call, body: requests.TakeFirst) -> TaskAnswer | None:
    """Take the first ready task of the first of these tubes that has one; 204 if none became ready in time."""
    taker = call.access.broker if call.session.aio_session is None else call.session.aio_session
    work = taker.take(body.tubes, body.timeout or 0, max_pri=body.max_pri)
    task = await (call.while_connected(work) if body.timeout else work)
    taken = await _handed_out(call, [] if task is None else [task])
    return taken[0] if taken else None


async def _handed_out(call: Call, tasks: list[aio.Task]) -> list[TaskAnswer]:
    """The response to a take. If the caller has disconnected, the tasks are released."""
    if tasks and await call.is_gone():
        for task in tasks:
            await task.release()
        return []
    return [responses.task(task, call.session.session_handle.id) for task in tasks]


async def ack(call: Call, body: requests.Ack) -> Settled:
    """Ack a task: it is done and leaves the tube."""
    return await _settle(call, body, "ack", body.result)


async def release(call: Call, body: requests.Release) -> Settled:
    """Release a task: it is ready again at its old place."""
    return await _settle(call, body, "release", body.delay)


async def touch(call: Call, body: requests.Touch) -> Settled:
    """Extend the lease of a task."""
    return await _settle(call, body, "touch", body.seconds)


async def fail(call: Call, body: requests.Fail) -> Settled:
    """Fail a task for good: it leaves the tube, and its error is kept."""
    return await _settle(call, body, "fail", body.error, body.code)


async def bury(call: Call, body: requests.Bury) -> Settled:
    """Bury a task, in any state: nobody takes it until it is kicked."""
    return await _settle(call, body, "bury", body.reason)


async def cancel(call: Call, body: requests.Cancel) -> Settled:
    """End a task with the outcome `cancelled`, in any state."""
    return await _change_one(call, partial(admin.cancel, reason=body.reason))


async def kick_one(call: Call, body: requests.NoBody) -> Settled:
    """Kick a buried task: it is ready again, with its attempts reset to 0."""
    return await _change_one(call, admin.kick_one)


async def retry(call: Call, body: requests.NoBody) -> Settled:
    """Make a task ready now: kick it if it is buried, release it if it is taken, end its delay if it is delayed."""
    return await _change_one(call, admin.retry)


async def _change_one(call: Call, change: Callable[[Tube, int | str], None]) -> Settled:
    tube = await call.access.tube(call.path["name"], call.session)
    id = await _id(call, tube)
    await call.access.call(change, tube.sync, id)
    return Settled(id, tube.name)


async def _id(call: Call, tube: aio.Tube) -> Any:
    """The id in the path, or the id of the task that has the address in the path."""
    if "address" in call.path:
        return (await tube.peek(address=call.path["address"])).id
    return task_id(tube, call.path["id"])


async def _settle(call: Call, body: requests.Held, verb: str, *args: Any) -> Settled:
    tube = await call.access.tube(call.path["name"], call.session)
    id = task_id(tube, call.path["id"])
    which: Any = id
    if body.lease is not None and tube.stored.kind.leased:
        which = hand_out(id, body.lease)
    elif verb in LEASED_VERBS:
        _need_session(call, tube, "lease")
    await getattr(tube, verb)(which, *args)
    return Settled(id, tube.name)


def _need_session(call: Call, tube: aio.Tube, field: str) -> None:
    """Raise BadValue for a settle with neither lease nor session: all such callers share the server's session."""
    if call.session.aio_session is None and tube.stored.kind.leased:
        raise BadValue(f"the body has no {field}: send it as the take returned it, or send the header Penstock-Session")


async def ack_many(call: Call, body: requests.AckMany) -> Acked:
    """Ack several tasks in one step; those that this session no longer holds are skipped."""
    tube = await call.access.tube(call.path["name"], call.session)
    ids: list[Any] = body.ids
    if body.leases is None:
        _need_session(call, tube, "leases")
    elif len(body.leases) != len(ids):
        raise BadValue(f"leases has {len(body.leases)} texts for {len(ids)} ids: give one for each")
    elif tube.stored.kind.leased:
        held = [_held(id, lease) for id, lease in zip(ids, body.leases, strict=True)]
        acked = iter(await tube.ack_many([each for each in held if each]))
        return Acked([bool(each and next(acked)) for each in held])
    return Acked(list(await tube.ack_many(ids)))


def _held(id: Any, lease: str) -> HandOut | None:
    try:
        return hand_out(id, lease)
    except NotTaken:
        return None


async def peek(call: Call) -> TaskAnswer:
    """Read a task, whichever session holds it."""
    tube = await call.access.tube(call.path["name"], call.session)
    return responses.task(await tube.peek(await _id(call, tube)), errors=True)


async def peek_address(call: Call) -> TaskAnswer:
    """Read the task that has an address."""
    return await peek(call)


async def delete(call: Call) -> None:
    """Delete a task, in any state."""
    tube = await call.access.tube(call.path["name"], call.session)
    await tube.delete(await _id(call, tube))


async def delete_address(call: Call) -> None:
    """Delete the task that has an address, in any state."""
    await delete(call)


async def cancel_address(call: Call, body: requests.Cancel) -> Settled:
    """End the task that has an address, in any state, with the outcome `cancelled`."""
    return await cancel(call, body)


async def why(call: Call) -> Sentence:
    """Why a task is not running: what holds it back, who, since when, until when."""
    tube = await call.access.tube(call.path["name"], call.session)
    return Sentence(await tube.why(task_id(tube, call.path["id"])))


async def list_tasks(call: Call, query: requests.Listing) -> TaskList:
    """List tasks in id order, of one status if given."""
    tube = await call.access.tube(call.path["name"], call.session)
    after = None if query.after is None else task_id(tube, query.after)
    page = await call.access.call(read_tasks, tube.sync, query.status, query.limit, after)
    return TaskList([responses.task(task) for task in page.tasks], page.tasks[-1].id if page.more else None)


async def recover(call: Call, body: requests.Recover) -> TaskList:
    """Hand out again messages that were delivered some time ago and not acked (kind reliable)."""
    tube = await call.access.tube(call.path["name"], call.session)
    found = await call.access.call(recover_tasks, tube.sync, body.count, body.elapsed)
    return TaskList([responses.task(task) for task in found])


async def inspect(call: Call, query: requests.Inspection) -> TaskList:
    """Read the undelivered or the delivered list (kind reliable)."""
    tube = await call.access.tube(call.path["name"], call.session)
    found = await call.access.call(inspect_tasks, tube.sync, query.start, query.count, query.pending)
    return TaskList([responses.task(task) for task in found])


def task_id(tube: aio.Tube, text: str) -> Any:
    """The task id in a path, as an integer or a text, depending on the tube's kind."""
    if tube.kind in _TEXT_IDS:
        return text
    if not re.fullmatch(r"\d{1,16}", text, re.ASCII):
        raise BadValue("the task id in the path is not an integer: ids of this tube are integers")
    return int(text)

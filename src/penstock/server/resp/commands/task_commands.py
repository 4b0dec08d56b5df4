"""TUBE.* for tasks: put, take, settle, look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from penstock.broker.outcome import Outcome
from penstock.broker.tube import MAX_PAGE, PAGE, Tube
from penstock.core import codec
from penstock.core.task import Facts, Task, record_of
from penstock.core.values import span_ms
from penstock.core.values import whole as bounded
from penstock.errors import NotFound
from penstock.operations.operation import Operation
from penstock.server.auth import Role
from penstock.server.paging import inspect_tasks, read_tasks, recover_tasks, take_tasks
from penstock.server.resp import command_args
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args, Reader, code, data, number, options, task_id, text, whole
from penstock.server.resp.commands.command import Command, by_tube, same, single, timeout_from, verb
from penstock.server.resp.replies import Reply
from penstock.server.resp.service import operation_of

_TAKE = {"timeout": number, "count": whole, "max_pri": whole}


def payload(task: Facts[Any]) -> bytes:
    """A task's data on the wire: bytes as they were put, other values as their JSON text."""
    stored = record_of(task).payload
    return stored[1:] if codec.is_raw(stored) else stored


def triple(task: Facts[Any]) -> Reply:
    """A task as (id, status, data)."""
    return [task.id, task.status.value, payload(task)]


def triples(tasks: list[Task]) -> Reply:
    """Several tasks as (id, status, data)."""
    return [triple(task) for task in tasks]


def _put(tube: Tube, args: Args) -> Operation[Task]:
    return operation_of(tube.put, args[0], **options(args[1:], command_args.PUT))


def _take(tube: Tube, args: Args) -> Operation[Reply]:
    given = options(args, _TAKE)
    many = "count" in given
    tasks = yield from take_tasks(tube, given.get("count", 1), given.get("timeout", 0), given.get("max_pri"))
    if not tasks:
        return None
    return triples(tasks) if many else triple(tasks[0])


def _takes_out(args: Args) -> int:
    counts = [args[at + 1] for at in range(1, len(args) - 1, 2) if args[at].upper() == b"COUNT"]
    return int(counts[0]) if counts and counts[0].isdigit() and len(counts[0]) < 12 else 1


async def _take_any(session: Session, args: Args) -> Reply:
    count = whole("number of tubes", args[0])
    names = [text("tube", name) for name in args[1 : 1 + max(0, count)]]
    given = options(args[1 + len(names) :], {"timeout": number, "max_pri": whole})
    operation = session.session_handle.take_first(names, given.get("timeout", 0), given.get("max_pri"))
    (task,) = await session.run_ops([operation])
    if isinstance(task, Exception):
        raise task
    return None if task is None else [task.tube, *cast("list[Reply]", triple(task))]


def _any_waits(args: Args) -> bool:
    return any(word.upper() == b"TIMEOUT" for word in args[2:])


def _ack(tube: Tube, args: Args) -> Operation[None]:
    return operation_of(tube.ack, task_id(tube, args[0]), **options(args[1:], {"result": data}))


def _release(tube: Tube, args: Args) -> Operation[None]:
    return operation_of(tube.release, task_id(tube, args[0]), **options(args[1:], {"delay": number}))


def _touch(tube: Tube, args: Args) -> Operation[None]:
    return operation_of(tube.touch, task_id(tube, args[0]), number("seconds", args[1]))


def _fail(tube: Tube, args: Args) -> Operation[None]:
    return operation_of(tube.fail, task_id(tube, args[0]), text("error", args[1]), **options(args[2:], {"code": code}))


def _which(tube: Tube, args: Args) -> Operation[tuple[int | str, Args]]:
    """The task that the first arguments name, by id or by ADDRESS, and the remaining arguments."""
    if len(args) == 1 or args[0].upper() != b"ADDRESS":
        return task_id(tube, args[0]), args[1:]
    task: Task = yield from operation_of(tube.peek, address=text("address", args[1]))
    return task.id, args[2:]


def _joins(args: Args) -> bytes | None:
    """The join key: the tube for calls by id; None by address, whose task may change with each call."""
    return None if args[1].upper() == b"ADDRESS" else args[0]


def _on_one(verb: str, **known: Reader) -> Callable[[Tube, Args], Operation[Any]]:
    """A verb of the tube on one task, by its id or its address."""

    def operation(tube: Tube, args: Args) -> Operation[Any]:
        id, rest = yield from _which(tube, args)
        return (yield from operation_of(getattr(tube, verb), id, **options(rest, known)))

    return operation


def _cancel(tube: Tube, args: Args) -> Operation[int]:
    try:
        cancelled = yield from _on_one("cancel", reason=text)(tube, args)
    except NotFound:  # no task has the address
        return 0
    return int(cancelled)


_FACTS = "tube pri utube attempts lease created taken due expires address group reason".split()


def _facts(task: Task) -> Reply:
    rest: dict[str, Reply] = {name: getattr(task, name) for name in _FACTS}
    return {"id": task.id, "status": task.status.value, "data": payload(task), **rest}


def _tasks(tube: Tube, args: Args) -> Operation[list[Task]]:
    given = options(args, {"status": text, "limit": _page, "after": lambda what, raw: task_id(tube, raw)})
    page = yield from operation_of(read_tasks, tube, given.get("status"), given.get("limit", PAGE), given.get("after"))
    return page.tasks


def _page(what: str, raw: bytes) -> int:
    """The number of tasks in one reply, limited because all are in memory at once."""
    return bounded(what, whole(what, raw), 1, MAX_PAGE)


def _wait(tube: Tube, args: Args) -> Operation[Outcome]:
    return operation_of(tube.wait, text("address", args[0]), options(args[1:], {"timeout": number}).get("timeout", 0))


def _outcome(outcome: Outcome) -> Reply:
    result = outcome.result
    shown = result if result is None or isinstance(result, bytes) else codec.encode(result)
    return {"status": outcome.status, "result": shown, "error": outcome.error, "code": outcome.code}


def _recover(tube: Tube, args: Args) -> Operation[list[Task]]:
    return operation_of(recover_tasks, tube, whole("count", args[0]), number("elapsed", args[1]))


def _inspect(tube: Tube, args: Args) -> Operation[list[Task]]:
    pending = [word.upper() for word in args[2:]] == [b"PENDING"]
    if not pending:
        options(args[2:], {})
    return operation_of(inspect_tasks, tube, whole("start", args[0]), whole("count", args[1]), pending)


async def _session(session: Session, args: Args) -> Reply:
    if len(args) == 1:
        await session.join(text("session id", args[0]), 0)
    elif args:
        await session.join(None, span_ms("ttr", options(args, {"ttr": number})["ttr"]))
    return (await session.service.ask(session.session_handle.join)).id


def _id(task: Task) -> Reply:
    found: int | str = task.id
    return found


COMMANDS = (
    Command("TUBE.PUT", -3, verb(_put, _id), tube_at=1, waits=timeout_from(2),
            joins=lambda args: None if timeout_from(2)(args) else args[0], usage="name data [OPTION value ...]"),
    Command("TUBE.TAKE", -2, verb(_take, same), tube_at=1, waits=timeout_from(1),
            joins=lambda args: None if timeout_from(1)(args) else args[0], takes_out=_takes_out,
            usage="name [TIMEOUT seconds] [COUNT count] [MAX_PRI pri]"),
    Command("TUBE.TAKEANY", -3, single(_take_any), waits=_any_waits,
            usage="count name [name ...] [TIMEOUT seconds] [MAX_PRI pri]"),
    Command("TUBE.ACK", -3, verb(_ack), tube_at=1, joins=by_tube, usage="name id [RESULT data]"),
    Command("TUBE.RELEASE", -3, verb(_release), tube_at=1, joins=by_tube, usage="name id [DELAY seconds]"),
    Command("TUBE.TOUCH", 4, verb(_touch), tube_at=1, joins=by_tube, usage="name id seconds"),
    Command("TUBE.FAIL", -4, verb(_fail), tube_at=1, joins=by_tube, usage="name id error [CODE code]"),
    Command("TUBE.BURY", -3, verb(_on_one("bury", reason=text)), tube_at=1, joins=_joins,
            usage="name id|ADDRESS address [REASON text]"),
    Command("TUBE.CANCEL", -3, verb(_cancel, same), tube_at=1, joins=_joins,
            usage="name id|ADDRESS address [REASON text]"),
    Command("TUBE.DELETE", -3, verb(_on_one("delete")), tube_at=1, joins=_joins, usage="name id|ADDRESS address"),
    Command("TUBE.PEEK", -3, verb(_on_one("peek"), triple), Role.READ, tube_at=1, large=True,
            usage="name id|ADDRESS address"),
    Command("TUBE.SHOW", -3, verb(_on_one("peek"), _facts), Role.READ, tube_at=1, large=True,
            usage="name id|ADDRESS address"),
    Command("TUBE.TASKS", -2, verb(_tasks, triples), Role.READ, tube_at=1, large=True,
            usage="name [STATUS letter] [LIMIT count] [AFTER id]"),
    Command("TUBE.WHY", -3, verb(_on_one("why"), same), Role.READ, tube_at=1, usage="name id|ADDRESS address"),
    Command("TUBE.WAIT", -3, verb(_wait, _outcome), Role.READ, tube_at=1, waits=timeout_from(2),
            usage="name address [TIMEOUT seconds]"),
    Command("TUBE.RECOVER", 4, verb(_recover, triples), tube_at=1, usage="name count seconds"),
    Command("TUBE.INSPECT", -4, verb(_inspect, triples), Role.READ, tube_at=1, large=True,
            usage="name start count [PENDING]"),
    Command("TUBE.SESSION", -1, single(_session), usage="[id | TTR seconds]"),
)  # fmt: skip

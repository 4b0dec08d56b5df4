"""The types of the API's responses, which the OpenAPI document describes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock import aio
from penstock.broker.outcome import Outcome
from penstock.broker.stats import TubeInfo, TubeStats
from penstock.core.attempts import Attempt
from penstock.core.task import Facts, lease_text, record_of

# Responses with more bytes of data are encoded in a thread, so that other requests need not wait.
LARGE = 256 * 1024


class TaskAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A task. Its data is in `data`, or in `base64` if bytes were put.

    In the response of a take, `session` is the session that took it, and `lease` the text to send when it is settled.
    Elsewhere, `lease` is the number of its newest lease.
    """

    id: int | str
    status: str
    tube: str
    data: Any = UNSET
    base64: bytes | UnsetType = UNSET
    pri: int
    utube: str | None
    attempts: int
    lease: int | str
    created: float | None
    taken: float | None
    due: float | None
    expires: float | None
    address: str | None
    group: str | None
    progress: float | None
    reason: str | None
    session: str | UnsetType = UNSET
    errors: list[Attempt] | UnsetType = UNSET  # of a single task


class TaskList(msgspec.Struct, frozen=True):
    """Tasks in order. If `after` is present, there may be more: continue with it."""

    tasks: list[TaskAnswer]
    after: int | str | None = None


class TakenTasks(msgspec.Struct, frozen=True):
    """The tasks of a take with `count`, and the session that holds them."""

    tasks: list[TaskAnswer]
    session: str


class Settled(msgspec.Struct, frozen=True):
    """The task that was settled."""

    id: int | str
    tube: str


class Acked(msgspec.Struct, frozen=True):
    """For each id, whether it was acked; for kind reliable, the ids that were removed."""

    acked: list[bool | str]


class Count(msgspec.Struct, frozen=True):
    """The number of tasks that were changed."""

    count: int


class TubeLine(msgspec.Struct, frozen=True):
    """A tube in the list of tubes."""

    name: str
    kind: str
    options: dict[str, Any]


class TubeAnswer(msgspec.Struct, frozen=True):
    """A tube with its counters."""

    name: str
    kind: str
    options: dict[str, Any]
    paused: bool
    stats: TubeStats


class Sentence(msgspec.Struct, frozen=True):
    """Why a task is not running."""

    why: str


class OutcomeAnswer(msgspec.Struct, frozen=True):
    """How a task ended. A result of bytes is in `base64`."""

    status: str
    result: Any = None
    base64: bytes | UnsetType = UNSET
    error: str | None = None
    code: int | str | None = None
    errors: list[Attempt] | UnsetType = UNSET


class GroupAnswer(msgspec.Struct, frozen=True):
    """A group: open, started, cancelling, done or cancelled; `done` of `total` tasks have left it."""

    name: str
    state: str
    done: int
    total: int


class SessionAnswer(msgspec.Struct, frozen=True):
    """A session, for the header Penstock-Session."""

    session: str


class Health(msgspec.Struct, frozen=True):
    """Whether the server is up and its store answers."""

    status: str


def task(found: Facts[Any], session: str | UnsetType = UNSET, *, errors: bool = False) -> TaskAnswer:
    """A task as the API returns it, with the errors of its attempts if asked. Its JSON is copied as it is stored."""
    raw = isinstance(found.data, bytes)
    return TaskAnswer(
        id=found.id,
        status=found.status.value,
        tube=found.tube,
        data=UNSET if raw else msgspec.Raw(record_of(found).payload),
        base64=found.data if isinstance(found.data, bytes) else UNSET,
        pri=found.pri,
        utube=found.utube,
        attempts=found.attempts,
        lease=found.lease if session is UNSET else lease_text(found),
        created=found.created,
        taken=found.taken,
        due=found.due,
        expires=found.expires,
        address=found.address,
        group=found.group,
        progress=found.progress,
        reason=found.reason,
        session=session,
        errors=found.errors if errors else UNSET,
    )


def encoded(answer: object) -> Callable[[], bytes] | bytes:
    """A response as JSON; if encoding takes a while, the function that does it."""
    tasks = answer.tasks if isinstance(answer, TaskList | TakenTasks) else [answer]
    parts = [part for task in tasks if isinstance(task, TaskAnswer) for part in (task.base64, task.data)]
    size = sum(len(memoryview(part)) for part in parts if isinstance(part, bytes | msgspec.Raw))
    encode = partial(msgspec.json.encode, answer)
    return encode if size > LARGE else encode()


def outcome(ended: Outcome) -> OutcomeAnswer:
    """An outcome as the API returns it."""
    if isinstance(ended.result, bytes):
        return OutcomeAnswer(ended.status, None, ended.result, ended.error, ended.code, ended.errors or UNSET)
    return OutcomeAnswer(ended.status, ended.result, UNSET, ended.error, ended.code, ended.errors or UNSET)


def tube_line(info: TubeInfo) -> TubeLine:
    """A tube as the list of tubes has it."""
    return TubeLine(info.name, info.kind, msgspec.to_builtins(info.options))


async def tube(handle: aio.Tube, paused: bool) -> TubeAnswer:
    """A tube and its exact counters."""
    given = msgspec.to_builtins(handle.stored.given)
    return TubeAnswer(handle.name, handle.kind, given, paused, await handle.stats())

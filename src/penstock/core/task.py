"""A task as stored (Record), as put (Entry), and as programs use it (Facts, and Task with its verbs)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from penstock.core import codec
from penstock.core.attempts import read_attempts
from penstock.core.kind import Kind
from penstock.core.lease import number_of
from penstock.core.values import Seconds
from penstock.errors import BadValue, StoreCorrupt

T = TypeVar("T")


class Status(StrEnum):
    """The status of a task, by the letter used on the wire and in stores."""

    READY = "r"
    TAKEN = "t"
    DONE = "-"
    BURIED = "!"
    DELAYED = "~"


# Stored state of a ready task that waits in its micro-queue: not in the ready index, shown as ready.
QUEUED = "q"
# The micro-queue of tasks put without one. Labels given by callers are never empty.
NO_UTUBE = ""
# Stored state of a task whose group is not started: not in the ready index, shown as delayed.
UNSTARTED = "g"


class _Statuses(dict[str, Status]):
    def __missing__(self, state: str) -> Status:
        raise StoreCorrupt(f"a task is stored in unknown state {state!a}: broker.check(repair=True) makes it ready")


# stored state -> public status
STATUS = _Statuses({**{status.value: status for status in Status}, QUEUED: Status.READY, UNSTARTED: Status.DELAYED})


class Rank(msgspec.Struct, frozen=True, gc=False):
    """One key of the order: base, plus the put time if `clock`, minus the id if `newest`."""

    base: float = 0
    clock: bool = False
    newest: bool = False

    def value(self, id: int, now: int) -> float:
        """The rank of a task with that id and put time."""
        if not (self.clock or self.newest):
            return self.base
        return self.base + (now if self.clock else 0) - (id if self.newest else 0)


class Extra(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Put options that no database reads, stored as one JSON text. A new one changes no store. None means not given."""

    max_attempts: int | None = None
    callback: str | None = None

    def packed(self) -> str | None:
        """The options as stored; None if none is given."""
        return None if self == _NOTHING else _encode_extra(self).decode()


_NOTHING = Extra()
_encode_extra, _decode_extra = msgspec.json.Encoder().encode, msgspec.json.Decoder(Extra).decode


@lru_cache(1000)  # most tasks of a tube have the same text
def _read_extra(text: str) -> Extra:
    try:
        return _decode_extra(text)
    except msgspec.MsgspecError:  # overwritten by another program: show the task without them
        return _NOTHING


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A task to be stored: options validated, data encoded, times in milliseconds."""

    payload: bytes
    rank1: Rank
    rank2: Rank
    pri: int = 0
    utube: str | None = None
    ttl: int | None = None
    ttr: int | None = None
    delay: int = 0
    extra: str | None = None  # see Extra
    address: str | None = None  # also the id of an element of a round tube
    duplicate: str = "error"  # or ignore, replace, refresh: what to do if another task has the address
    reply_to: str | None = None
    group: str | None = None
    group_no: int | None = None  # its group's number; None: the live group of that name, or a new one
    unstarted: bool = False  # its group is not started; set by the engine


class Record(msgspec.Struct, frozen=True, gc=False):
    """One stored task. `at` is the next time at which the store must act on it: the end of its delay, lease or ttl,
    depending on its state. In unleased kinds `address` is the public id."""

    id: int
    state: str
    rank1: float
    rank2: float
    pri: int
    utube: str | None
    attempts: int
    lease: int  # see core.lease
    created: int
    taken: int | None
    expires: int | None
    at: int | None
    ttr: int | None
    owner: int | None
    reason: str | None
    extra: str | None  # see Extra
    payload: bytes
    address: str | None = None
    reply_to: str | None = None  # marked if the task has a next link: see core.chain
    group: str | None = None
    group_no: int | None = None
    progress: float | None = None  # of this hand-out, as its handler reported
    errors: bytes | None = None  # of attempts, see core.attempts; take does not read it

    @property
    def options(self) -> Extra:
        """The decoded `extra`."""
        return _NOTHING if self.extra is None else _read_extra(self.extra)


class Numbered(Protocol):
    """What a task needs to know of its stored tube."""

    @property
    def no(self) -> int: ...
    @property
    def kind(self) -> Kind: ...


class TubeRef(Protocol):
    """The tube handle a task came from."""

    @property
    def name(self) -> str: ...
    @property
    def stored(self) -> Numbered: ...


class TaskTube(TubeRef, Protocol):
    """A tube handle with the verbs that Task calls."""

    def ack(self, task_or_id: Task, result: object = None) -> None: ...
    def fail(self, task_or_id: Task, error: str, code: str | int | None = None) -> None: ...
    def release(self, task_or_id: Task, delay: Seconds | None = 0) -> None: ...
    def bury(self, task_or_id: Task, reason: str | None = None) -> None: ...
    def touch(self, task_or_id: Task, seconds: Seconds) -> None: ...
    def _finish(self, task: Task) -> None: ...
    def _release_failed(self, task: Task, error: BaseException) -> None: ...


H = TypeVar("H", bound=TubeRef, covariant=True)


class Facts(Generic[H]):
    """The fields of a task, as stored when the call returned, except that verbs update `.status`.

    `id, status, data = task` unpacks the three that a consumer needs.
    """

    __slots__ = ("_leased", "_record", "_tube", "data", "progress", "reason", "status")

    def __init__(self, record: Record, tube: H, data: Any, *, leased: bool = False) -> None:
        self._record = record
        self._tube = tube
        self.data = data
        self.status = STATUS[record.state]
        self.reason = record.reason
        self.progress = record.progress
        self._leased = leased

    @property
    def _unleased(self) -> bool:
        return not self._tube.stored.kind.leased

    id = property(lambda self: self._record.address if self._unleased else self._record.id, doc="The task's id.")
    tube = property(lambda self: self._tube.name, doc="The name of its tube.")
    pri = property(lambda self: self._record.pri, doc="Its priority; smaller is more urgent.")
    utube = property(lambda self: self._record.utube or None, doc="The name of its micro-queue, or None.")
    attempts = property(lambda self: self._record.attempts, doc="How often it was handed out.")
    lease = property(lambda self: number_of(self._record.lease), doc="The number of its newest hand-out.")
    created = property(lambda self: _seconds(self._record.created), doc="When it was put.")
    taken = property(lambda self: _seconds(self._record.taken), doc="When it was last taken, or None.")
    expires = property(lambda self: _seconds(self._record.expires), doc="The end of its ttl, or None.")
    address = property(lambda self: None if self._unleased else self._record.address, doc="Its address, or None.")
    group = property(lambda self: self._record.group, doc="The name of its group, or None.")
    errors = property(
        lambda self: read_attempts(self._record.errors),
        doc="Its last failed attempts, newest last; take does not read them.",
    )

    @property
    def due(self) -> float | None:
        """When a delayed task becomes ready, or a taken one's lease lapses; else None."""
        return _seconds(self._record.at) if self._record.state in ("~", "t") else None

    def decode(self, kind: type[T]) -> T:
        """The data as a dataclass, msgspec struct, pydantic model or annotated type."""
        return codec.decode_as(self._record.payload, kind)

    def __iter__(self) -> Iterator[object]:
        return iter((self.id, self.status, self.data))

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.status.name.lower()} in {self.tube}>"


class Task(Facts[TaskTube]):
    """A task and its verbs. It carries the lease of its hand-out; once the lease is dead, verbs raise NotTaken."""

    __slots__ = ()

    def ack(self, result: object = None) -> None:
        """Finish the task: it leaves the tube."""
        self._tube.ack(self, result)

    def fail(self, error: str, code: str | int | None = None) -> None:
        """Mark the task as failed for good: it leaves the tube."""
        self._tube.fail(self, error, code)

    def release(self, delay: Seconds | None = 0) -> None:
        """Return the task to its old place in the tube, after `delay` seconds."""
        self._tube.release(self, delay)

    def bury(self, reason: str | None = None) -> None:
        """Set the task aside until it is kicked."""
        self._tube.bury(self, reason)

    def touch(self, seconds: Seconds) -> None:
        """Extend the lease of this hand-out by that many seconds."""
        self._tube.touch(self, seconds)

    def __enter__(self) -> Task:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ack the task if the block succeeded; release it, with the tube's back-off, if the block raised.

        Does nothing if the block has settled the task itself.
        """
        if self.status is not Status.TAKEN:
            return
        if error is None:
            self._tube._finish(self)
        else:
            self._tube._release_failed(self, error)


# What other modules of penstock read of a Task. Functions, because programs would see methods.


def record_of(task: Facts[Any]) -> Record:
    """The task as stored when it was handed out or read."""
    return task._record


def tube_of(task: Facts[H]) -> H:
    """The tube handle that the task came from."""
    return task._tube


def is_leased(task: Facts[Any]) -> bool:
    """Whether the task came from a take, so that its verbs need its lease."""
    return task._leased


def lease_text(task: Facts[Any]) -> str:
    """The lease of a taken task as an opaque text, including its random part; `core.lease.hand_out` reads it."""
    return f"{task._record.lease:x}"


def show_change(task: Facts[Any], record: Record) -> None:
    """Update status and reason of a Task after a verb. Its lease remains that of the hand-out."""
    task.status = STATUS[record.state]
    task.reason = record.reason


def make_task(record: Record, tube: TaskTube) -> Task:
    """The Task of a record. Data that cannot be decoded is shown as raw bytes."""
    try:
        data = codec.decode(record.payload)
    except BadValue:
        data = record.payload
    return Task(record, tube, data)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000

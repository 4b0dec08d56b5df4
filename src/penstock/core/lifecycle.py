"""What each verb does to a task. `docs/lifecycle.md` is generated from TRANSITIONS.

Stored states: r ready, q ready but waiting in its micro-queue, t taken, ~ delayed, g waiting for the start of its
group, ! buried, - gone. The functions return the Change that a store applies. Where a change says r, the store of a
micro-queue kind decides between r and q.
"""

from __future__ import annotations

import msgspec

from penstock.core.attempts import LAPSED, SESSION_ENDED, Failure, StoredAttempt, append, entry_of
from penstock.core.ending import STATUS_OF, Ending
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Record

# event -> state before -> states it may lead to
TRANSITIONS: dict[str, dict[str, str]] = {
    "take": {"r": "t"},
    "ack": {"t": "-"},
    "fail": {"t": "-"},
    "release": {"t": "r~!-"},
    "touch": {"t": "t"},
    "bury": {"r": "!", "t": "!", "~": "!", "!": "!"},
    "kick": {"!": "r"},
    "delete": {"r": "-", "t": "-", "~": "-", "!": "-"},
    "ttl": {"r": "-", "~": "-", "!": "-", "t": "-"},
    "ttr": {"t": "r!-"},
    "delay": {"~": "r"},
}
# The verbs that only the holder of the live lease may use.
LEASED_VERBS = frozenset({"ack", "fail", "release", "touch"})
EVENTS = ("put", *TRANSITIONS)
# The event of a take whose answer was lost: it is neither reported nor counted.
UNDONE = "undone"


class Change(msgspec.Struct, frozen=True):
    """A task's next state, and the events that are counted and reported."""

    state: str
    events: tuple[str, ...]
    at: int | None = None
    expires: int | None = None
    attempts: int = 0
    reason: str | None = None
    progress: float | None = None
    ending: Ending | None = None  # the outcome of a task that is gone, if someone may ask for it or gets a reply
    until: int | None = None  # valid before this time: then the lease or ttl that the decision relied on ends
    error: StoredAttempt | None = None  # the error of the attempt that this change ends


class Move(msgspec.Struct, frozen=True, gc=False):
    """One verb on one task, with its guard.

    ack, fail, release, touch: only by the session that holds the live lease. bury, delete, cancel: by anyone, or, with
    `lease`, only while that lease is live. kick: by anyone, of a buried task.
    `extra`: the delay of a release or the extension of a touch, in ms. `result`: of an ack, encoded. `code`: of a fail,
    with its `reason`, as JSON text. `progress`: of a touch. `max_attempts`: of a release, overrides the task's own.
    `ttr`: of a touch, in ms: the lease ends that long from now, even if it had no end. `name`: in unleased kinds, the
    task's id instead of `id`; `session` is None there. `seen`: the task as its holder knows it; a store may decide by
    it instead of reading the task if its guard detects that it changed. `failure`: how a handler's attempt failed,
    stored with the task.
    """

    verb: str
    id: int
    session: int | None = None
    lease: int | None = None
    extra: int = 0
    reason: str | None = None
    unstarted: bool = False
    result: bytes | None = None
    code: str | None = None
    name: str | None = None
    progress: float | None = None
    seen: Record | None = None
    max_attempts: int | None = None
    ttr: int | None = None
    failure: Failure | None = None

    @property
    def shown(self) -> int | str:
        """The public id of the task: a number, or a text in unleased kinds."""
        return self.id if self.name is None else self.name

    @property
    def held(self) -> Record | None:
        """The holder's copy of the task, or None if it is not enough to decide this move."""
        record = self.seen
        if record is None or record.attempts > 1:  # earlier attempts may have left errors, which a take does not read
            return None
        return record if record.state == "t" and record.lease == self.lease else None


def decide(record: Record, move: Move, now: int) -> Change | None:
    """The change that a move makes, or None if its guard fails."""
    if not _allowed(record, move, now):
        return None
    change = _decided(record, move, now)
    failure = move.failure
    if failure is None and move.verb == "fail":
        failure = Failure(move.reason or "")
    if failure is not None and record.state == "t":
        change = msgspec.structs.replace(change, error=entry_of(record.attempts, now, failure))
    ends = record.at if move.verb in LEASED_VERBS or move.lease is not None else None
    if record.expires is not None and record.expires > now and (ends is None or record.expires < ends):
        ends = record.expires  # after its ttl the decision would differ
    return change if ends is None else msgspec.structs.replace(change, until=ends)


def _decided(record: Record, move: Move, now: int) -> Change:
    match move.verb:
        case "release":
            if move.reason is not None:
                record = msgspec.structs.replace(record, reason=move.reason)
            return came_back(record, now, "release", move.extra, unstarted=move.unstarted, most=move.max_attempts)
        case "touch":
            return touched(record, move.extra, move.progress, None if move.ttr is None else now + move.ttr)
        case "bury":
            return buried(record, move.reason)
        case "kick":
            return kicked(record)
        case "cancel":
            return cancelled(record, move.reason)
        case verb:
            return removed(record, verb, move)


def _allowed(record: Record, move: Move, now: int) -> bool:
    if move.verb in LEASED_VERBS:
        return record.owner == move.session and _alive(record, move.lease, now)
    if move.verb == "kick":
        return record.state == "!"
    return move.lease is None or _alive(record, move.lease, now)


def _alive(record: Record, lease: int | None, now: int) -> bool:
    """Whether the task is taken under that lease (None: any lease) and the lease is live."""
    return record.state == "t" and (lease is None or record.lease == lease) and (record.at is None or record.at > now)


def came_back(
    record: Record, now: int, event: str, delay: int = 0, *, unstarted: bool = False, most: int | None = None
) -> Change:
    """The change when a taken task loses its lease by release, session end or ttr.

    Past its ttl it is gone. After `most` attempts (None: its max_attempts) it is buried. Otherwise it returns to its
    old place. The attempt of an `unstarted` task (prefetched, never run) is not counted.
    """
    attempts = record.attempts - 1 if unstarted else record.attempts
    if record.expires is not None and record.expires <= now:
        return Change("-", (event, "ttl"), attempts=attempts, ending=_ending(record, "ttl"))
    most = record.options.max_attempts if most is None else most
    if most is not None and attempts >= most:
        reason = record.reason or f"handed out {attempts} times without an ack"
        events = ("bury",) if event == "release" else (event, "bury")
        return Change("!", events, record.expires, record.expires, attempts, reason)
    if delay:
        expires = None if record.expires is None else record.expires + delay
        return Change("~", (event,), now + delay, expires, attempts, record.reason)
    return Change("r", (event,), record.expires, record.expires, attempts, record.reason)


def lost(record: Record, now: int, event: str) -> Change:
    """The change when the holder of a task is gone: its ttr passed, or its session ended (counted as a release)."""
    failure = Failure(LAPSED if event == "ttr" else SESSION_ENDED)
    return msgspec.structs.replace(came_back(record, now, event), error=entry_of(record.attempts, now, failure))


def undone(record: Record, now: int) -> Change:
    """The change that undoes a take whose answer was lost."""
    return came_back(record, now, UNDONE, unstarted=True)


def became_due(record: Record, now: int) -> Change:
    """The change when a task's `at` has come."""
    if record.state == "t":
        return lost(record, now, "ttr")
    if record.state == "~" and (record.expires is None or record.expires > now):
        return Change("r", ("delay",), record.expires, record.expires, record.attempts, record.reason)
    if record.state == UNSTARTED and (record.expires is None or record.expires > now):
        # Its delay is over before its group is started: from now on only its ttl counts.
        return Change(UNSTARTED, (), record.expires, record.expires, record.attempts, record.reason)
    return Change("-", ("ttl",), attempts=record.attempts, ending=_ending(record, "ttl"))


def kicked(record: Record) -> Change:
    """The change of a kick: back to its old place, with no attempts counted."""
    return Change("r", ("kick",), record.expires, record.expires, 0, None)


def buried(record: Record, reason: str | None) -> Change:
    """The change of a bury. The ttl keeps running."""
    return Change("!", ("bury",), record.expires, record.expires, record.attempts, reason or record.reason)


def touched(record: Record, extra: int, progress: float | None = None, until: int | None = None) -> Change:
    """The change of a touch: a later or new deadline for this hand-out, and its progress if given."""
    at = until if until is not None else None if record.at is None else record.at + extra
    share = record.progress if progress is None else progress
    return Change("t", ("touch",), at, record.expires, record.attempts, record.reason, share)


def removed(record: Record, event: str, move: Move | None = None) -> Change:
    """The change of an ack, fail, delete or truncate: the task is gone."""
    if event != "fail" and record.address is None and record.reply_to is None:
        return Change("-", (event,), attempts=record.attempts)
    return Change("-", (event,), attempts=record.attempts, ending=_ending(record, event, move))


def cancelled(record: Record, reason: str | None = None) -> Change:
    """The change when the task or its group is cancelled. Counted as a delete."""
    return Change("-", ("delete",), attempts=record.attempts, ending=Ending("cancelled", error=reason))


def _ending(record: Record, event: str, move: Move | None = None) -> Ending | None:
    """The outcome to keep; None if no caller can look it up."""
    if event != "fail" and record.address is None and record.reply_to is None:
        return None
    if move is None or event not in ("ack", "fail"):
        return Ending(STATUS_OF[event])
    if event == "ack":
        return Ending("done", result=move.result)
    return Ending("failed", error=move.reason, code=move.code)


def failed(record: Record, burial: Change) -> Change:
    """The change that replaces a burial in a group that continues without the task: it fails with the reason."""
    events = tuple("fail" if event == "bury" else event for event in burial.events)
    known = record.address is not None or record.reply_to is not None
    ending = Ending("failed", error=burial.reason or "buried") if known else None
    return Change("-", events, attempts=burial.attempts, reason=burial.reason, ending=ending, error=burial.error)


def expired(record: Record, now: int) -> bool:
    """Whether a task is past its ttl and therefore gone; a taken one is kept until it is released."""
    return record.expires is not None and record.expires <= now and record.state != "t"


def altered(record: Record, change: Change, state: str) -> Record:
    """The record after a change; `state` is r or q if the change left that to the store."""
    return msgspec.structs.replace(
        record,
        state=state,
        at=change.at,
        expires=change.expires if state != "-" else record.expires,
        attempts=change.attempts,
        reason=change.reason,
        progress=change.progress,
        owner=record.owner if state == "t" else None,
        errors=record.errors if change.error is None else append(record.errors, change.error),
    )


# Kinds without leases: no session holds their tasks, so the end of a session does not affect them.


def dispatched(record: Record, now: int) -> Record:
    """An element of a round tube after a hand-out: still ready, behind all others."""
    return msgspec.structs.replace(record, rank1=now, taken=now, attempts=record.attempts + 1)


def round_limit(tube: Tube, now: int) -> int:
    """The highest rank1 that may be handed out now; an element that was never handed out has 0."""
    return max(0, now - tube.period)


def round_wait_ms(tube: Tube, rank: float, now: int) -> int | None:
    """Milliseconds until the element of that rank may be handed out; None if it may be now."""
    return None if rank <= round_limit(tube, now) else int(rank) + tube.period - now


def delivered(record: Record, now: int, serial: int) -> Record:
    """A message of a reliable tube after a delivery: taken without an owner, last of the delivered ones."""
    return msgspec.structs.replace(record, state="t", rank1=serial, taken=now, attempts=record.attempts + 1)

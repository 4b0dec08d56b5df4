"""Why a task is not running, in one sentence: what holds it back, who, since when, until when."""

from __future__ import annotations

from penstock.core.lifecycle import round_wait_ms
from penstock.core.options import Tube
from penstock.core.select import Holders
from penstock.core.task import NO_UTUBE, Record
from penstock.engine.store import Store

_MANY = 1000  # where a store stops counting what is ahead


def explain(store: Store, tube: Tube, record: Record) -> str:
    """Explain in one sentence why the task is not running."""
    now = store.now()
    if not tube.kind.leased:
        return f"task {record.address} is {_unleased(store, tube, record, now)}"
    match record.state:
        case "t":
            return f"task {record.id} is taken: {_held(store, record, now)}"
        case "g":
            return f"task {record.id} is delayed: its group {record.group} is not started"
        case "~":
            return f"task {record.id} is delayed: it is ready in {_span((record.at or now) - now)}"
        case "!":
            reason = f" ({record.reason})" if record.reason else ""
            return f"task {record.id} is buried{reason}: kick makes it ready again"
    if store.counters(tube).paused:
        return f"task {record.id} is ready, but tube {tube.name} is paused: resume the tube first"
    ahead = store.ahead(tube, record)
    if record.state == "q":
        return f"task {record.id} is ready, but {_micro_queue(store, tube, record, now)}; {_ahead(ahead)}"
    return f"task {record.id} is ready: {_turn(ahead)}"


def _unleased(store: Store, tube: Tube, record: Record, now: int) -> str:
    since = "" if record.taken is None else f"handed out {_span(now - record.taken)} ago"
    if record.state == "t":
        return f"delivered: {since}, delivery {record.attempts}, not acked; recover hands it out again"
    if store.counters(tube).paused:
        return f"ready, but tube {tube.name} is paused: resume the tube first"
    wait = round_wait_ms(tube, record.rank1, now)
    if wait is not None:
        return f"ready, but {since}: it may be handed out again in {_span(wait)}"
    return f"ready: {_turn(store.ahead(tube, record))}"


def _micro_queue(store: Store, tube: Tube, record: Record, now: int) -> str:
    name = "the micro-queue of tasks without utube" if record.utube == NO_UTUBE else f"micro-queue {record.utube}"
    assert record.utube is not None
    holders = store.find(tube, Holders(record.utube, 1))
    if not holders:
        return f"others of {name} come first"
    [micro_queue] = store.counters(tube, [record.utube]).micro_queues
    others = f" and {micro_queue.taken - 1} more" if micro_queue.taken > 1 else ""
    return f"{name} is held by task {holders[0].id}{others}, {_held(store, holders[0], now)}"


def _held(store: Store, record: Record, now: int) -> str:
    if store.lost.leased(record):
        return "by a take of this process whose answer was lost; the next take or heartbeat releases it"
    until = "" if record.at is None else f", until its ttr in {_span(record.at - now)}"
    since = "" if record.taken is None else f" for {_span(now - record.taken)}"
    owner = None if record.owner is None else next(iter(store.sessions(record.owner)), None)
    if owner is None:
        return f"held{since} by a session that has ended{until}"
    who = (
        f"session {owner.id} on host {owner.host} (pid {owner.pid}), last heartbeat {_span(now - owner.heartbeat)} ago"
    )
    return f"held{since} by {who}{until}"


def _turn(ahead: int) -> str:
    return f"{_ahead(ahead)}; the {'take after that' if ahead else 'next take'} gets it"


def _ahead(count: int) -> str:
    if count == 0:
        return "no task is ahead of it"
    return f"{count:,}{' or more' if count >= _MANY else ''} task{'' if count == 1 else 's'} ahead of it"


def _span(ms: int) -> str:
    seconds = max(ms, 0) / 1000
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"

"""What operators can do beyond the verbs of a program: settle one task in any state, and find busy or failing tasks.

Everything here reads a bounded number of tasks, however many there are, and counts no rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec

from penstock.broker.tube import Tube, find_records
from penstock.core import names
from penstock.core.group import Group
from penstock.core.kind import must_have
from penstock.core.lifecycle import TRANSITIONS, Move
from penstock.core.results import MicroQueue
from penstock.core.task import Record, Status, Task, make_task, record_of
from penstock.errors import NotFound, NotTaken
from penstock.operations.store_ops import settle

# How many tasks of a state are read to find what is busy or failing.
SAMPLE = 500
# How many micro-queues of these are read.
MAX_MICRO_QUEUES = 100
# How many tasks one search reads before it returns.
SEARCHED = 5000
# A search returns when what it found has this many bytes of data.
FOUND_BYTES = 4 * 1024 * 1024
#: The verbs of an operator on one task, in the order of buttons.
VERBS = ("release", "bury", "cancel", "delete")


def verbs_for(status: Status) -> list[str]:
    """The verbs that an operator can use on a task of that status."""
    own = [verb for verb in VERBS if status.value in TRANSITIONS["delete" if verb == "cancel" else verb]]
    if status is Status.BURIED:
        own.remove("bury")
    return ["retry", *own] if status in (Status.BURIED, Status.DELAYED) else own


def kick_one(tube: Tube, id: int | str) -> None:
    """Kick this buried task: it is ready again at its old place, with no attempts counted."""
    must_have(tube.stored.kind, "kick")
    record = settle(tube.runtime, tube.stored, [Move("kick", names.task_id(id))])[0]
    if record is None:
        tube.peek(id)
        raise NotFound(f"task {id} of tube {tube.name} is not buried: only buried tasks are kicked")


def release_one(tube: Tube, id: int | str) -> None:
    """Release a taken task, whichever session holds it; the holder's ack then raises NotTaken."""
    must_have(tube.stored.kind, "release")
    held = record_of(tube.peek(id))
    record = settle(tube.runtime, tube.stored, [Move("release", held.id, held.owner, held.lease)])[0]
    if held.state != "t" or record is None:
        raise NotTaken(f"task {id} of tube {tube.name} is not taken: peek shows its state")


def retry(tube: Tube, id: int | str) -> None:
    """Make a task ready now: kick it if it is buried, release it if it is taken, end its delay if it is delayed."""
    must_have(tube.stored.kind, "kick")
    status = tube.peek(id).status
    if status is Status.TAKEN:
        release_one(tube, id)
    elif status is Status.READY:
        raise NotTaken(f"task {id} of tube {tube.name} is already ready: `why` shows what it waits for")
    else:
        if status is Status.DELAYED:
            tube.bury(id)  # kicked below; if the process dies in between, the task stays buried, where operators see it
        kick_one(tube, id)


def change_many(tube: Tube, verb: str, records: Sequence[Record], reason: str | None = None) -> int:
    """Retry, cancel or delete these tasks. Returns how many were changed; skips those that others have changed first.

    Retry kicks buried tasks and ends the delay of delayed ones; tasks in other states are left alone.
    """
    if not tube.stored.kind.leased:
        if verb != "delete":
            must_have(tube.stored.kind, "kick" if verb == "retry" else verb)
        return _settle_many(tube, [Move(verb, 0, name=record.address) for record in records])
    if verb != "retry":
        return _settle_many(tube, [Move(verb, record.id, reason=reason) for record in records])
    delayed = [record.id for record in records if record.state == "~"]
    _settle_many(tube, [Move("bury", id) for id in delayed])  # as in `retry`
    ids = [*delayed, *(record.id for record in records if record.state == "!")]
    return _settle_many(tube, [Move("kick", id) for id in ids])


def _settle_many(tube: Tube, moves: Sequence[Move]) -> int:
    return sum(record is not None for record in settle(tube.runtime, tube.stored, moves)) if moves else 0


def cancel(tube: Tube, id: int | str, reason: str | None = None) -> None:
    """Cancel a task. Raises NotFound, where `tube.cancel` returns False."""
    if not tube.cancel(id, reason):
        raise NotFound(f"task {id} is not in tube {tube.name}: it was never put, or has left it")


def holder(tube: Tube, record: Record) -> str | None:
    """The id of the session that holds a task."""
    owners = [] if record.owner is None else tube.runtime.store.sessions(record.owner)
    return owners[0].id if owners else None


def is_paused(tube: Tube) -> bool:
    """Whether the tube is paused."""
    return tube.runtime.store.counters(tube.stored).paused


def micro_queues(tube: Tube) -> list[MicroQueue]:
    """The micro-queues of the first taken and the first ready tasks, the busiest first."""
    store, stored = tube.runtime.store, tube.stored
    utubes = [record.utube for letter in ("t", "r") for record in find_records(tube, letter, SAMPLE)]
    labels = Counter(utube for utube in utubes if utube is not None).most_common(MAX_MICRO_QUEUES)
    seen = store.counters(stored, [label for label, _ in labels]).micro_queues
    return sorted(
        seen, key=lambda micro_queue: (-micro_queue.waiting - micro_queue.heads, -micro_queue.taken, micro_queue.utube)
    )


def live_groups(tube: Tube, after: str = "", limit: int = 100) -> list[Group]:
    """The groups that have not ended, by name."""
    tube.runtime.apply_due(tube.stored)
    return tube.runtime.store.groups(tube.stored, after=after, limit=limit)


def live_group(tube: Tube, name: str) -> Group:
    """The group of that name. Raises NotFound if it is not live."""
    label = names.name("group", name)
    # After the last name that sorts before it.
    before = label[:-1] + chr(ord(label[-1]) - 1) + "\U0010ffff"
    found = live_groups(tube, before, 1)
    if not found or found[0].name != name:
        raise NotFound(f"group {name} is not live in tube {tube.name}: it has ended, or never existed")
    return found[0]


class Found(msgspec.Struct, frozen=True):
    """Tasks that match, and the id to continue after; None if all were read."""

    tasks: list[Task]
    after: int | None


def search(tube: Tube, status: Status | None, text: str, after: int | None, limit: int) -> Found:
    """Find tasks, in id order, with the text in their id, data, labels or reason; reads a bounded number of tasks."""
    matches = matcher(text)
    found: list[Task] = []
    most = SEARCHED if text.strip() else limit
    size = 0
    for number, record in enumerate(find_records(tube, status, most, after or 0), 1):
        if matches(record):
            found.append(make_task(record, tube))
            size += len(record.payload) + len(record.reason or "") + len(record.errors or b"")
        if len(found) == limit or number == most or size > FOUND_BYTES:
            return Found(found, record.id)
    return Found(found, None)


def matcher(text: str) -> Callable[[Record], bool]:
    """Return a function that checks whether a task contains the text. An empty text matches every task."""
    wanted = text.strip().casefold()
    return lambda record: not wanted or wanted in _words(record)


def _words(record: Record) -> str:
    labels = (str(record.id), record.utube, record.address, record.group, record.reason, record.extra)
    words = " ".join(label for label in labels if label)
    return f"{words} {record.payload.decode('utf-8', 'replace')}".casefold()


class Callback(msgspec.Struct, frozen=True):
    """Callbacks of one host in one tube, among the first tasks of each state."""

    tube: str
    host: str
    waiting: int
    retrying: int
    buried: int
    reason: str | None


def callbacks(tube: Tube, sample: int = SAMPLE) -> list[Callback]:
    """The hosts that some tasks of each state call, those with the most buried tasks first."""
    tube.runtime.apply_due(tube.stored)
    numbers: Counter[tuple[str, str]] = Counter()
    reasons: dict[str, str] = {}
    for letter, what in (("!", "buried"), ("~", "retrying"), ("r", "waiting"), ("t", "waiting")):
        for record in find_records(tube, letter, sample, advance=False):
            if (url := record.options.callback) is None:
                continue
            host = urlsplit(url).netloc
            # A delayed one that was never tried only waits for its first time.
            numbers[host, "waiting" if what == "retrying" and not record.attempts else what] += 1
            if record.reason is not None:
                reasons.setdefault(host, record.reason)
    hosts = dict.fromkeys(host for host, _ in numbers)
    found = [
        Callback(
            tube.name, host, numbers[host, "waiting"], numbers[host, "retrying"], numbers[host, "buried"],
            reasons.get(host),
        )
        for host in hosts
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.buried, -one.retrying, one.host))


class Host(msgspec.Struct, frozen=True):
    """Callbacks of one host in all tubes that were read."""

    name: str
    waiting: int
    retrying: int
    buried: int
    tubes: list[Callback]


def by_host(found: list[Callback]) -> list[Host]:
    """Sum up the callbacks by host, those with the most failures first."""
    hosts: dict[str, list[Callback]] = {}
    for one in found:
        hosts.setdefault(one.host, []).append(one)
    made = [
        Host(
            name, sum(one.waiting for one in ones), sum(one.retrying for one in ones), sum(one.buried for one in ones),
            sorted(ones, key=lambda one: (-one.buried, -one.retrying, one.tube)),
        )
        for name, ones in hosts.items()
    ]  # fmt: skip
    return sorted(made, key=lambda host: (-host.buried, -host.retrying, host.name))

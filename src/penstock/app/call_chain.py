"""Chains of calls: each is put in the step that acks the previous one, with its result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from penstock.app.call import Call, must_be_call, new_address
from penstock.app.handle import Found, Handle, find
from penstock.app.tracing import PutSpan
from penstock.broker.outcome import Outcome, await_task
from penstock.broker.tube import Tube
from penstock.core import chain as core
from penstock.core import names
from penstock.core.entry import make_entry
from penstock.core.options import TimedOptions, with_delay
from penstock.core.shards import refuse_sharded
from penstock.core.task import Entry
from penstock.core.values import Seconds
from penstock.core.values import timeout as check_timeout
from penstock.engine.store import load_tube
from penstock.errors import BadValue, DuplicateAddress, NotFound, TaskFailed
from penstock.operations.operation import Call as Blocking
from penstock.operations.operation import Operation, blocking
from penstock.operations.store_ops import put_entries

if TYPE_CHECKING:
    from penstock.app.handler import Handler

R = TypeVar("R")

# Seconds between checks for a link whose predecessor is done: Redis puts the next link in a second step.
_NEXT_LINK_POLL = 0.02
# Seconds between checks of a pending link, which can be cancelled while the link before it runs.
_PENDING_POLL = 1.0


def chain(*calls: Call[Any]) -> Chain:
    """Calls that run one after the other; each receives the previous result as its first positional argument."""
    if not calls:
        raise BadValue("a chain has no calls: give at least one, such as handler.call(1)")
    for call in calls:
        must_be_call(call)
    connections = {id(call.handler.connection) for call in calls}
    if len(connections) > 1:
        raise BadValue("the calls of a chain belong to several apps: use calls of one app")
    return Chain(calls)


class Chain:
    """A chain, made by `penstock.chain(…)`. It can be put any number of times."""

    def __init__(self, calls: Sequence[Call[Any]]) -> None:
        self.calls = tuple(calls)

    @blocking
    def put(self) -> Operation[ChainHandle[Any]]:
        """Store the first call together with those that follow. Returns the handle of the last call."""
        tubes: list[Tube] = []
        for call in self.calls:
            tube = yield from call.handler.find_tube()
            refuse_sharded("chains", tube.stored.name, tube.stored.shards)
            tubes.append(tube)
        token, names_of = new_address(), [tube.name for tube in tubes]
        addresses = [core.link_address(token, names_of, place) for place in range(len(tubes))]
        timed = any(call.put_options.get("at") is not None for call in self.calls)
        now: int = (yield Blocking(tubes[0].runtime.store.now)) if timed else 0
        first, following = self.calls[0], zip(self.calls[1:], tubes[1:], addresses[1:], strict=True)
        with PutSpan(first.handler.name, tubes[0].name, len(tubes)) as span:
            links = [_link(call, tube, address, now, span.fields) for call, tube, address in following]
            _refuse_own(first)
            data, options = first.item(tubes[0])
            options["address"] = addresses[0]
            stored = {**core.with_links(data, links), **span.fields}

            def entries(now: int) -> list[Entry]:
                entry = make_entry(tubes[0].stored, stored, with_delay(tubes[0].stored.kind, options, now))
                return [msgspec.structs.replace(entry, reply_to=core.marked(entry.reply_to)) if links else entry]

            timeout, remake = first.put_options.get("timeout", 0), entries if timed else None
            yield from put_entries(tubes[0].runtime, tubes[0].stored, entries(now), timeout, remake)
        handles = [
            ChainHandle(call.handler, tube, address)
            for call, tube, address in zip(self.calls, tubes, addresses, strict=True)
        ]
        handles[-1].handles = handles
        first.handler.hooks.was_put([handles[0]])
        eager = first.handler.connection.eager
        if eager is not None:
            yield Blocking(eager)
        return handles[-1]


def _refuse_own(call: Call[Any]) -> None:
    for option in ("address", "group", "on_duplicate"):
        if call.put_options.get(option) is not None:
            raise BadValue(f"{call.handler.name} has {option}, but a chain sets its links' addresses: remove {option}")


def _link(call: Call[Any], tube: Tube, address: str, now: int, more: Mapping[str, object]) -> core.Link:
    """Make the link for a call. Raises if its tube would refuse its options, before anything is put."""
    _refuse_own(call)
    data, options = call.pending_item(tube)
    make_entry(tube.stored, data, with_delay(tube.stored.kind, {**options, "address": address}, now))
    into = call.handler.arguments.first_place() if call.takes_result else None
    kept, at = _portable(options)
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in {**data, **more}.items()}
    return core.Link(tube.name, address, raw, into, kept, at)


def _portable(options: TimedOptions) -> tuple[dict[str, object], float | None]:
    """Convert put options to JSON values; the time of `at` is returned separately, in seconds since the epoch."""
    kept: dict[str, object] = {}
    at = None
    for name, value in cast("dict[str, object]", options).items():
        if isinstance(value, datetime):
            at = value.timestamp()
        elif isinstance(value, timedelta):
            kept[name] = value.total_seconds()
        elif value is not None and name not in ("address", "at", "on_duplicate"):
            kept[name] = value
    return kept, at


class ChainHandle(Handle[R], Generic[R]):
    """The handle of one link of a chain, which is found by its address. `id` is None until the link is put.

    `handles` of the last link has the handles of all links.
    """

    handles: list[ChainHandle[Any]]

    def __init__(self, handler: Handler[..., R, object], tube: Tube, address: str) -> None:
        super().__init__(handler, tube, 0)
        self.address = names.label("address", address)
        self.handles = [self]

    def __repr__(self) -> str:
        return f"<Handle of {self._handler.name} at {self.address} in {self._tube.name}>"

    @property  # type: ignore[override]
    def id(self) -> int | None:
        """The task id; None while the link is pending or if it is gone."""
        return self._lookup().id

    @id.setter
    def id(self, _: int) -> None:
        """Ignore the id: a link is found by its address."""

    @blocking
    def wait(self, timeout: Seconds | None = None) -> Operation[Outcome]:
        """Wait for the link to end. Raises NotFound if it was never put, TaskFailed as soon as it is buried."""
        limit = check_timeout(timeout)
        ends = None if limit is None else time.monotonic() + limit
        runtime = self._tube.runtime
        while True:
            found: Found = yield Blocking(self._lookup)
            left = None if ends is None else max(0.0, ends - time.monotonic())
            if found.status == "unknown":
                raise NotFound(
                    f"address {self.address} of tube {self._tube.name} has no task and no outcome: "
                    "it was never put, or its outcome is no longer kept"
                )
            if found.record is not None:  # raises TaskFailed when it is buried
                return self._read((yield from await_task(runtime, self._tube.stored, found.record.id, left)))
            if found.outcome is not None:
                return self._read(found.outcome)
            if left == 0:
                raise TimeoutError(f"{self!r} did not end within {limit:g} s")
            if found.before is None:
                yield from self._tube.session_handle.pause(_NEXT_LINK_POLL)
                continue
            tube, record = found.before
            try:
                pause = _PENDING_POLL if left is None else min(left, _PENDING_POLL)
                yield from await_task(runtime, tube.stored, record.id, pause)
            except (TaskFailed, TimeoutError):
                continue  # the previous link was buried, or is still there: check again

    def cancel(self, reason: str | None = None) -> bool:
        """Cancel the link and all that follow it. Returns False if it has ended or was never put.

        A pending link is stored and cancelled at once, because a link whose address has an outcome is never put.
        """
        why = names.text("reason", reason)
        while True:
            found = self._lookup()
            if found.record is not None and self._tube.cancel(found.record.id, why):
                return True
            if found.status != "pending":
                return False
            try:  # in a group that never starts, so that nobody takes it
                group = self._tube.group(self.address.partition("@")[0])
                task = group.put(None, address=self.address)
            except DuplicateAddress:
                continue  # another process put it in the meantime
            self._tube.cancel(task.id, why)
            group.cancel()
            return True

    def _lookup(self) -> Found:
        found = find(self._tube, self.address)
        if found.status != "unknown":
            return found
        for name, address in core.links_before(self._tube.name, self.address):
            stored = load_tube(self._tube.runtime.store, name)
            if stored is None:
                continue
            tube = Tube(self._tube.runtime, self._tube.session_handle, stored)
            before = find(tube, address)
            if before.status == "unknown":
                continue
            again = find(self._tube, self.address)  # put since the first check
            return _after(tube, before) if again.status == "unknown" else again
        return found


def _after(tube: Tube, before: Found) -> Found:
    """The state of a link that is not put yet, derived from the nearest known link before it."""
    if before.outcome is not None and before.outcome.status != "done":
        error = before.outcome.error or f"the link before it was {before.outcome.status}"
        return Found("failed", outcome=Outcome("failed", error=error, code=before.outcome.code))
    return Found("pending", before=None if before.record is None else (tube, before.record))

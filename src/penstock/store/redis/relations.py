"""The store's calls about addresses, outcomes, replies and groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from penstock.core import group as rules
from penstock.core.address import duplicate
from penstock.core.ending import Sought
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.refusals import tube_full
from penstock.core.results import ADVANCE_STEP, Advanced, Effects, Stored
from penstock.core.task import Entry
from penstock.errors import PenstockError
from penstock.store.redis import puts
from penstock.store.redis.connection import Reply
from penstock.store.redis.encoding import GROUP_LETTERS, MAX_ID, read_group, read_outcome, task_id, task_key
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.queries import scan
from penstock.store.redis.runner import Runner
from penstock.store.redis.steps import Steps
from penstock.store.redis.subscriber import Subscriber


class RelationCalls:
    """Keeps the contract of `store.contract` for addresses, outcomes and groups."""

    _runner: Runner
    _steps: Steps
    _outbox: Outbox
    _subscriber: Subscriber

    def _put_related(self, tube: Tube, entries: Sequence[Entry], now: int | None) -> Stored:
        """A put of entries of which some have addresses, reply tubes or groups."""
        if any(entry.reply_to is not None for entry in entries):
            self._outbox.register(tube)
        capacity = "" if tube.capacity is None else tube.capacity
        effects, packed = Effects(), puts.pack_related(tube, entries)
        records, rest = self._steps.attempt("put_related", tube, effects, capacity, *packed, now=now)
        if records is None:
            raise self._refusal(tube, entries, rest)
        return Stored([records[place - 1] for place in cast("list[int]", rest[0])], effects)

    def _refusal(self, tube: Tube, entries: Sequence[Entry], why: list[Reply]) -> PenstockError:
        if why[0] == b"full":
            self._subscriber.interests.add(tube.no)
            return tube_full(tube, cast(int, why[1]), len(entries))
        entry = entries[cast(int, why[1]) - 1]
        if why[0] == b"ended":
            return rules.ended(entry.group or "")
        return duplicate(entry.address, cast(bytes, why[2]).decode())

    def outcome(self, tube: Tube, key: int | str, *, now: int | None = None) -> Sought:
        return self._by_id(tube, key, now) if isinstance(key, int) else self._seek(tube, key, now)[0]

    def _seek(self, tube: Tube, address: str, now: int | None) -> tuple[Sought, int]:
        """The same, and the id of the task."""
        reply = self._runner.on_tag("find_address", tube.no, self._runner.moment(now), address, idempotent=True)
        _, id, *outcome = self._runner.known(tube, cast("list[Reply]", reply))
        if id:
            return Sought(cast(int, id)), cast(int, id)
        return _ended(outcome), cast(int, outcome[1]) if outcome else 0

    def _by_id(self, tube: Tube, id: int, now: int | None) -> Sought:
        key = task_key(id) if 0 < id <= MAX_ID else b""
        self._subscriber.interests.add(tube.no)  # before anybody may notify
        reply = self._runner.on_tag("outcome_by_id", tube.no, self._runner.moment(now), key, idempotent=True)
        _, there, *outcome = self._runner.known(tube, cast("list[Reply]", reply))
        return Sought(id) if there else _ended(outcome)

    def open_group(self, tube: Tube, name: str, *, now: int | None = None) -> Group:
        reply = self._runner.on_tube("open_group", tube, name, puts.pack_facts(tube), idempotent=True, now=now)
        return read_group(cast(int, reply[1]), cast(bytes, reply[2]))

    def groups(
        self, tube: Tube, *, no: int | None = None, after: str = "", limit: int = 100, now: int | None = None
    ) -> list[Group]:
        """As the contract says; a listing reads all groups, in pages."""
        if no is not None:
            self._subscriber.interests.add(tube.no)  # before anybody may notify
            reply = self._runner.on_tube("get_group", tube, no, idempotent=True, now=now)
            return [] if len(reply) == 1 else [read_group(no, cast(bytes, reply[1]))]
        fields = scan(self._runner, tube, "groups")
        groups = (read_group(task_id(field[1:]), record) for field, record in fields if field[:1] == b"g")
        live = {group.name: group for group in groups if group.state in rules.LIVE and group.name > after}
        return [live[name] for name in sorted(live)[:limit]]

    def change_group(
        self, tube: Tube, no: int, *, to: str | None = None, end: bytes | None = None, cancel: bytes | None = None,
        now: int | None = None,
    ) -> Advanced | None:  # fmt: skip
        if to is not None:
            return self._turn_group(tube, no, to, now)
        reply = self._runner.on_tube("set_group_work", tube, no, end or b"", cancel or b"", idempotent=True, now=now)
        return Advanced(False, None, Effects()) if reply[1] else None

    def _turn_group(self, tube: Tube, no: int, to: str, now: int | None) -> Advanced:
        effects, capacity = Effects(), "" if tube.capacity is None else tube.capacity
        turn = (no, GROUP_LETTERS[to], capacity, ADVANCE_STEP)
        records, rest = self._steps.attempt("turn_group", tube, effects, *turn, now=now)
        if records is None:
            raise tube_full(tube, cast(int, rest[0]), 1)
        return Advanced(bool(rest[0]), 0 if rest[0] else None, effects)


def _ended(outcome: list[Reply]) -> Sought:
    found = cast("bytes | None", outcome[0] if outcome else None)
    return Sought() if found is None else Sought(ending=read_outcome(found)[1])

"""The store's calls about kinds that lease nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.store.base import Effects, Event, Settled, Stored
from penstock.store.redis import putting
from penstock.store.redis.finding import unless_expired
from penstock.store.redis.link import Reply
from penstock.store.redis.linked import LinkedCalls
from penstock.store.redis.record import decode
from penstock.store.redis.runner import read_pairs
from penstock.store.refusals import tube_full


class UnleasedCalls(LinkedCalls):
    """Keeps the contract of `store.unleased`. An element's id is an address to the scripts."""

    def _put_unleased(self, tube: Tube, entries: Sequence[Entry], now: int | None) -> Stored:
        if tube.kind.hand_out == CLOCK:
            return self._put_linked(tube, entries, now)
        capacity = "" if tube.capacity is None else tube.capacity
        reply = self._runner.on_tube("put_messages", tube, capacity, *putting.pack_entries(entries), now=now)
        moment, first = cast("list[int]", reply[:2])
        if first < 0:
            self._listener.interests.add(tube.no)
            raise tube_full(tube, cast(int, reply[2]), len(entries))
        ms, seq = cast("list[int]", reply[2:])
        records = [
            replace(record, address=shown_mark((ms, place)))
            for place, record in enumerate(putting.made(entries, first, moment), seq + 1)
        ]
        events = [Event(tube.no, "put", record) for record in records]
        return Stored(records, Effects(events, {tube.no: len(records)} if records else {}))

    def named(self, tube: Tube, names: Sequence[str], *, now: int | None = None) -> list[Record | None]:
        reply = self._runner.on_tag("get_by_name", tube.no, self._runner.moment(now), *names, again=True)
        moment, *found = self._runner.known(tube, cast("list[Reply]", reply))
        pairs = zip(cast("list[int]", found[::2]), cast("list[bytes | None]", found[1::2]), strict=True)
        return [None if value is None else unless_expired(decode(id, value), cast(int, moment)) for id, value in pairs]

    def recover(self, tube: Tube, count: int, elapsed: int, *, now: int | None = None) -> Settled:
        effects = Effects()
        _, rest = self._steps.run("recover", tube, effects, count, elapsed, now=now)
        records = read_pairs(cast("list[Reply]", rest[0]))
        effects.events += [Event(tube.no, "take", record) for record in records]
        return Settled(list(records), effects)

    def inspect(self, tube: Tube, start: int, count: int, *, pending: bool) -> list[Record]:
        reply = self._runner.on_tag("list_messages", tube.no, start, count, int(pending), again=True)
        return read_pairs(self._runner.known(tube, cast("list[Reply]", reply))[1:])

"""A unit of work: decisions about the tasks of one tube, collected in a Delta and flushed as one atomic change.

This module decides, for every store: the moves of holders; what happens at a deadline (delays end, leases lapse, ttls
expire); how tasks follow the start or cancel of their group; and what the end of a task causes: its outcome, its reply,
the countdown of its group, and the end of that group with its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from msgspec.structs import replace

from penstock.core import chain
from penstock.core import group as rules
from penstock.core.address import addresses, plan_put, replaced
from penstock.core.chain import Link
from penstock.core.ending import Ending, kept_under
from penstock.core.entry import plain_entry
from penstock.core.group import Group
from penstock.core.lifecycle import UNDONE, Change, Move, altered, became_due, cancelled, decide, expired
from penstock.core.options import Tube
from penstock.core.refusals import tube_full
from penstock.core.reply import REPLY_KIND, reply_payload
from penstock.core.results import Effects, Event
from penstock.core.task import Entry, Record
from penstock.core.transfer import is_hidden
from penstock.engine import port
from penstock.engine.port import ByNames, Delta, GroupRow, Loaded, Members, Row, Step

# A Work with more bytes of attempt errors than this must be flushed.
_MUCH = 2 * 1024 * 1024


class Work:
    """Collects decisions on one tube within one step. `flush` writes them; the object can be reused afterwards."""

    __slots__ = ("_before", "_error_bytes", "_fresh", "_groups", "_rows", "_works", "effects", "step", "tube")

    def __init__(self, step: Step, tube: Tube, effects: Effects) -> None:
        self.step = step
        self.tube = tube
        self.effects = effects
        self._rows: dict[int, Row] = {}
        self._fresh: list[Entry] = []
        self._groups: dict[int, Group] = {}
        self._before: dict[int, Group] = {}  # the same groups as stored
        self._error_bytes = 0
        self._works: dict[str, list[tuple[bytes, Link | None]]] = {}

    # loading

    def load(self, select: port.Select) -> list[Record]:
        """Load tasks, and remember their groups."""
        return self.remember(self.step.load(self.tube, select))

    def load_by(self, keys: Sequence[int | str]) -> dict[int | str, Record]:
        """Load tasks by id (int keys) or by address (str keys)."""
        if keys and isinstance(keys[0], str):
            return {record.address or "": record for record in self.load(ByNames(cast("Sequence[str]", keys)))}
        return {record.id: record for record in self.load(port.ByIds(cast("Sequence[int]", keys)))}

    def remember(self, loaded: Loaded) -> list[Record]:
        """Remember the groups of `loaded`. Returns its tasks."""
        for group in loaded.groups.values():
            self.remember_group(group)
        return loaded.records

    def remember_group(self, group: Group) -> Group:
        """Remember a group as stored, unless it is known already. Returns it with the changes decided so far."""
        if group.no not in self._groups:
            self._groups[group.no] = group
            self._before[group.no] = replace(group)
        return self._groups[group.no]

    def group(self, no: int) -> Group | None:
        """Return the group with that number; None if it is missing or past its retention."""
        group = self._groups.get(no)
        if group is None:
            found = self.step.groups(self.tube, no=no)
            if not found:
                return None
            group = self.remember_group(found[0])
        return None if rules.forgotten(group, self.step.now) else group

    def _lacks_group(self, record: Record) -> bool:
        """Return whether a task that was not loaded belongs to a missing group: a restored backup has neither."""
        return record.group_no is not None and self.group(record.group_no) is None

    def is_gone(self, record: Record) -> bool:
        """Return whether a stored task counts as gone, because it is past its ttl or its group is cancelled."""
        if record.expires is not None and expired(record, self.step.now):
            return True
        return record.group_no is not None and self._group_of(record).state == rules.CANCELLING

    def remove_if_gone(self, record: Record) -> bool:
        """Remove the task if it is past its ttl or its group is cancelled. Returns whether it is."""
        gone = self.is_gone(record)
        if gone:
            now = self.step.now
            self.change(record, became_due(record, now) if expired(record, now) else cancelled(record))
        return gone

    # deciding

    def change(self, record: Record, change: Change) -> Record:
        """Add the change of a task. Returns the record after the change."""
        state = None
        if record.group_no is not None:
            change = rules.adjust_to_group(record, change, self._group_of(record))
            state = self._before[record.group_no].state
        after, ending = altered(record, change, change.state), change.ending
        if ending is not None and after.errors is not None:
            ending = replace(ending, errors=after.errors)
        if change.error is not None:
            self._error_bytes += len(after.errors or b"")
        self._rows[record.id] = Row(record, after, change.events, ending, change.until, change.error, state)
        if change.state == "-" and (record.reply_to is not None or record.group_no is not None):
            self._follow_end(record, change)
        return after

    def change_each(self, records: Iterable[Record], decide: Callable[[Record], Change]) -> list[Record]:
        """Decide on each of these tasks and flush. Returns the records after the change, without those that another
        client changed first."""
        after, missed = list[Record](), set[int]()
        for record in records:
            after.append(self.change(record, decide(record)))
            if self.must_flush:
                missed |= self.flush()[0]
        missed |= self.flush()[0]
        return [record for record in after if record.id not in missed] if missed else after

    def rewrite(self, before: Record, after: Record, event: str) -> None:
        """Replace the content of a task."""
        self._rows[before.id] = Row(before, after, (event,))

    def put(self, entries: Iterable[Entry]) -> None:
        """Add new tasks. The caller has loaded their groups and checked that these accept tasks."""
        self._fresh += [entry if entry.group_no is None else self._joined(entry, entry.group_no) for entry in entries]

    def _joined(self, entry: Entry, no: int) -> Entry:
        group = self._groups[no]
        group.total += 1
        group.left += 1
        return replace(entry, unstarted=group.state == rules.OPEN)

    def end_group(self, group: Group) -> None:
        """End the group if it has no task left, and put its end or cancel work."""
        work = rules.end_if_empty(group, self.step.now + self.tube.retention)
        if work is not None:
            self.reply(self.tube.name, work)

    def reply(self, tube: str, payload: bytes) -> None:
        """Put a reply into the tube of that name."""
        self._works.setdefault(tube, []).append((payload, None))

    def _follow_end(self, record: Record, change: Change) -> None:
        if record.reply_to is not None and change.ending is not None:
            self._follow_up(record, record.reply_to, change.ending)
        if record.group_no is not None:
            group = self._group_of(record)
            rules.count_ended(group, change.events)
            self.end_group(group)

    def _follow_up(self, record: Record, reply_to: str, ending: Ending) -> None:
        """Put the reply of a task that ended and, if its status is done, the next link of its chain."""
        tube = chain.reply_tube(reply_to)
        if tube is not None:
            self.reply(tube, reply_payload(self.tube.shown(record), ending))
        found = chain.next_link(record.payload, ending.result) if chain.is_marked(reply_to) else None
        if found is not None and ending.status == "done":
            link, payload = found
            self._works.setdefault(link.tube, []).append((payload, link))

    def _group_of(self, record: Record) -> Group:
        assert record.group_no is not None
        group = self._groups.get(record.group_no) or self.group(record.group_no)
        assert group is not None, "a task keeps its group's record"
        return group

    # moves of holders

    def settle(
        self, moves: Sequence[Move], places: Iterable[int], records: list[Record | None], *, guess: bool
    ) -> list[int]:
        """Load, decide and flush one move of each task. Returns the indexes of the remaining moves: further moves of
        the same task, and moves of tasks that another client changed first.

        With `guess`, nothing is loaded if every move has its holder's copy of the task. Moves that cannot be decided by
        that copy remain.
        """
        batch: dict[int | str, int] = {}
        later = [place for place in places if batch.setdefault(moves[place].shown, place) != place]
        seen = {shown: record for shown, place in batch.items() if (record := moves[place].held)} if guess else {}
        guess = bool(seen) and len(seen) == len(batch)
        known = seen if guess else self.load_by(list(batch))
        now = self.step.now
        after: dict[int, tuple[int, Record]] = {}
        for shown, place in batch.items():
            record = known.get(shown)
            if self.must_flush or (guess and record is not None and self._lacks_group(record)):
                later.append(place)
                continue
            if record is None or self.remove_if_gone(record):
                continue
            change = decide(record, moves[place], now)
            if guess and (change is None or "ttl" in change.events):  # only the database's clock may decide that
                later.append(place)
            elif change is not None:
                after[record.id] = place, self.change(record, change)
        missed, _ = self.flush()
        for id, (place, record) in after.items():
            if id in missed:
                later.append(place)
            else:
                records[place] = record
        return sorted(later)

    # the clock and groups

    def advance(self, limit: int) -> bool:
        """Apply at most `limit` changes that are due, and flush them. Returns whether more may be due."""
        loaded = self.step.load(self.tube, port.Due(limit))
        records = self.remember(loaded)
        moving = sorted(group.no for group in loaded.groups.values() if group.moving)
        self.change_each(records, lambda record: became_due(record, self.step.now))
        return self.update_members(moving, limit - len(records)) or len(records) == limit

    def start_or_cancel(self, no: int, name: str, to: str) -> Group | None:
        """Start or cancel a group and flush. Returns None if the group no longer exists.

        Raises TubeFull if the tube is full and the group's end or cancel work replaces no task.
        """
        group = self.group(no)
        if group is None or group.name != name:
            return None
        if rules.needs_room(group, to):
            must_have_room(self.step, self.tube, 1)
        if rules.start_or_cancel(group, to):
            self.end_group(group)
        self.flush()
        return group

    def update_members(self, groups: Sequence[int], limit: int) -> bool:
        """Apply the new state of these groups to at most `limit` of their tasks. Returns whether more may remain."""
        for no in groups:
            if limit <= 0:
                return True
            limit -= self._update_members_of(no, limit)
        return limit <= 0 and bool(groups)

    def _update_members_of(self, no: int, limit: int) -> int:
        group = self.group(no)
        if group is None or not group.moving:
            return 0
        if group.state == rules.CANCELLING:
            records = self.load(Members(no, limit))
            for record in records:
                self.change(record, cancelled(record))
        else:
            records = self.load(Members(no, limit, unstarted=True))
            for record in records:
                self.change(record, rules.started(record, self.step.now))
        if len(records) < limit and group.state in (rules.STARTED, rules.CANCELLING):
            group.moving = False  # even if the counter is wrong, which `check` finds; do not loop
            self.end_group(group)
        self.flush()
        return len(records)

    # writing

    @property
    def must_flush(self) -> bool:
        """Whether the attempt errors may fill a server's packet, so that this work must be flushed first."""
        return self._error_bytes > _MUCH

    def flush(self, *, erase_upto: int | None = None) -> tuple[set[int], list[Record]]:
        """Write all decisions. Returns the ids of skipped rows, and the new tasks of this tube."""
        rows = list(self._rows.values())
        groups = self._changed_groups() if self._groups else []
        if not (rows or self._fresh or groups or self._works or erase_upto is not None):
            return set(), []
        delta = Delta(self.tube, rows, self._fresh, groups, erase_upto=erase_upto)
        if self._works and self.step.posts:
            self._post(delta)
        elif self._works:
            delta.works = self._replies()
        flushed = self.step.flush(delta)
        self._report(delta, flushed)
        self._rows, self._fresh, self._works = {}, [], {}
        self._groups, self._before = {}, {}
        self._error_bytes = 0
        return flushed.missed, flushed.fresh

    def _changed_groups(self) -> list[GroupRow]:
        known, before = self._groups, self._before
        return [GroupRow(before[no], replace(known[no])) for no in sorted(known) if known[no] != before[no]]

    def _report(self, delta: Delta, flushed: port.Flushed) -> None:
        """Add the written changes to `effects`."""
        effects, no, shown, missed = self.effects, self.tube.public_no, self.tube.shown, flushed.missed
        gone = 0
        for row in delta.rows:
            after = row.after
            if missed and after.id in missed:
                continue
            for event in row.events:
                if event != UNDONE:
                    effects.events.append(Event(no, event, shown(after)))
            if after.state == "-":
                gone += 1
                if row.ending and self.tube.kind.leased and kept_under(after.address, row.ending) is not None:
                    effects.ended.append(("task", no, self.tube.public_id(after.id)))
        if gone:
            effects.removed[no] = effects.removed.get(no, 0) + gone
        for tube, records in ((self.tube, flushed.fresh), *flushed.works):
            if records:
                no, shown = tube.public_no, tube.shown
                effects.events += [Event(no, "put", shown(record)) for record in records]
        if delta.groups:
            effects.ended += [("group", no, row.after.no) for row in delta.groups if row.after.state in rules.OVER]
        if flushed.effects is not None:
            effects.add(flushed.effects)
        for number, gain in flushed.readied.items():
            if gain > 0:
                effects.readied[number] = effects.readied.get(number, 0) + gain

    def _post(self, delta: Delta) -> None:
        """Add replies to this tube to `works`, and replies to other tubes and links of chains to `posts`."""
        own: list[Entry] = []
        for name, works in self._works.items():
            for payload, link in works:
                if link is None and name == self.tube.name:
                    own.append(plain_entry(self.tube, payload))
                else:
                    delta.posts.append(port.Post(name, payload, link))
        delta.works = [(self.tube, own)] if own else []

    def _replies(self) -> list[tuple[Tube, list[Entry]]]:
        """Return replies, group work and links of chains by destination tube."""
        tubes = [(self._work_tube(name), works) for name, works in self._works.items()]
        entries = [(tube, [entry for work in works if (entry := self._work(tube, *work))]) for tube, works in tubes]
        return [(tube, made) for tube, made in entries if made]

    def _work(self, tube: Tube, payload: bytes, link: Link | None) -> Entry | None:
        """Return the entry of a reply or a link; None for a link cancelled before its turn: its address is taken."""
        if link is None:
            return plain_entry(tube, payload)
        if self.step.load(tube, ByNames([link.address])).records:
            return None
        if self.step.outcomes_of(tube, [link.address]):
            return None
        return chain.link_entry(tube, link, payload, self.step.now)

    def _work_tube(self, name: str) -> Tube:
        """Return the tube that a reply goes to; create it if it is missing."""
        if name == self.tube.name and not is_hidden(name):
            return self.tube
        while True:
            found = self.step.tubes([name])
            tube = found[0] if found else self.step.add_tube(name, REPLY_KIND, {})
            if tube is not None:
                return tube


# puts that depend on stored tasks: tasks with an address or a group, and elements of round tubes


def put_linked(work: Work, entries: Sequence[Entry], *, guess: bool) -> list[Record]:
    """Store the entries, or replace the content of existing tasks. Returns the task of each entry, in order.

    With `guess`, nothing is loaded: the put assumes that no address is in use and no group is started. The flush raises
    Conflict if that is wrong.
    """
    names = [] if guess else list(dict.fromkeys(addresses(entries)))
    held = sorted(work.load(ByNames(names)), key=lambda record: record.id) if names else []
    there = {record.id: record for record in held if not work.is_gone(record)}
    plan = plan_put(entries, {record.address: record for record in there.values() if record.address is not None})
    groups = dict.fromkeys((entry.group, entry.group_no) for entry in plan.fresh if entry.group is not None)
    if not guess:  # a put that is refused changes nothing
        _must_live(work, groups)
        must_have_room(work.step, work.tube, len(plan.fresh) - len(held) + len(there))
        if len(there) < len(held):
            for record in held:
                work.remove_if_gone(record)
            work.flush()  # a group that ends with such a task must end before its name is used again
            _must_live(work, groups)
    opened: dict[str | None, int] = {}
    for name, no in groups:
        if no is None:
            opened[name] = work.remember_group(work.step.open_group(work.tube, name)).no
        elif guess:
            work.remember_group(Group(no, name))
        else:
            work.group(no)
    by_name = [replace(entry, group_no=entry.group_no or opened.get(entry.group)) for entry in plan.fresh if opened]
    work.put(by_name or plan.fresh)
    kept = dict(there)
    for id, entry in plan.replaced.items():
        kept[id] = replaced(there[id], entry, work.step.now)
        work.rewrite(there[id], kept[id], "put")
    _, stored = work.flush()
    return [stored[place] if place >= 0 else kept[-place] for place in plan.places]


def _must_live(work: Work, groups: Iterable[tuple[str, int | None]]) -> None:
    """Raise NotFound if a group that is given by its number has ended."""
    for name, no in groups:
        if no is not None:
            rules.must_live(work.group(no), name, work.step.now)


def must_have_room(step: Step, tube: Tube, more: int) -> None:
    """Raise TubeFull if the new tasks exceed the capacity. A server checks again in the flush, under its lock."""
    if tube.capacity is not None and more > 0:
        stored = step.counters(tube).counts.stored
        if stored + more > tube.capacity:
            raise tube_full(tube, stored, more)

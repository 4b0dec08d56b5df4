"""What the tasks of one tube are tied to: addresses and outcomes, replies, groups."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core import group as rules
from penstock.core.address import Plan, addresses, plan_put
from penstock.core.ending import SUPERSEDED_MS, Ending, Sought
from penstock.core.group import Group
from penstock.core.lifecycle import Change
from penstock.core.options import Tube
from penstock.core.reply import reply_payload
from penstock.core.task import Entry, Record
from penstock.store.memory.groups import Groups
from penstock.store.memory.outcomes import Outcomes
from penstock.store.memory.step import Step


class Links:
    """Kept by the tube as tasks come and go; shares its records."""

    __slots__ = ("_records", "by_address", "groups", "outcomes", "tube")

    def __init__(self, tube: Tube, records: dict[int, Record]) -> None:
        self.tube = tube
        self._records = records
        self.by_address: dict[str, int] = {}
        self.outcomes = Outcomes()
        self.groups = Groups(records)

    def plan(self, entries: Sequence[Entry], there: Sequence[Record], now: int) -> Plan:
        """What becomes of a put; raises, and nothing has changed, where it may not be."""
        plan = plan_put(entries, {record.address: record for record in there if record.address is not None})
        for entry in plan.fresh:
            self.groups.must_take(entry, now)
        return plan

    def of(self, address: str) -> Record | None:
        """The task that has the address."""
        id = self.by_address.get(address)
        return None if id is None else self._records[id]

    def held(self, entries: Sequence[Entry]) -> list[Record]:
        """The tasks that hold addresses of these entries, each once."""
        ids = {self.by_address[address] for address in addresses(entries) if address in self.by_address}
        return [self._records[id] for id in sorted(ids)]

    def arrived(self, record: Record, now: int) -> None:
        """A task was put."""
        if record.address is not None:
            self.by_address[record.address] = record.id
            self.outcomes.supersede(record.address, now + SUPERSEDED_MS)
        if record.group_no is not None:
            self.groups.arrived(record)

    def left(self, record: Record, ending: Ending | None, step: Step) -> None:
        """A task is gone: keep its outcome, reply, and end its group after the last one."""
        if record.address is not None and ending is not None:
            del self.by_address[record.address]
            if self.tube.kind.leased:
                self.outcomes.keep(record.id, record.address, ending, step.now + self.tube.retention)
                step.ended.append(("task", self.tube.no, record.id))
        if record.reply_to is not None and ending is not None:
            step.works.append((record.reply_to, reply_payload(record, ending)))
        if record.group_no is not None:
            self.end(self.groups.left(record), step)

    def end(self, group: Group, step: Step) -> None:
        """Call the group over if nothing is left of it, and put its work."""
        work = rules.end(group, step.now + self.tube.retention)
        if group.state in rules.OVER:
            self.groups.over(group)
            step.ended.append(("group", self.tube.no, group.no))
        if work is not None:
            step.works.append((self.tube.name, work))

    def gate(self, record: Record, change: Change) -> Change:
        """What a change becomes in the task's group."""
        return rules.gate(record, change, self.groups.state_of(record))

    def sweep(self, now: int, limit: int) -> None:
        """Forget some of what is past its retention."""
        self.outcomes.sweep(now, limit)
        self.groups.sweep(now, limit)

    def seek(self, address: str, now: int) -> Sought:
        """The live task of an address, or how the last one ended."""
        id = self.by_address.get(address)
        return Sought(ending=self.outcomes.last(address, now)) if id is None else Sought(id)

    def sought(self, id: int, now: int) -> Sought:
        """A task by id, there or ended."""
        return Sought(id) if id in self._records else Sought(ending=self.outcomes.of(id, now))

"""Cross-checks of addresses, outcomes and groups in Redis, against the tasks themselves; and repair."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED
from penstock.store.base import ADVANCE_STEP, Effects, Finding
from penstock.store.redis.finding import scan
from penstock.store.redis.keys import task_id, task_key
from penstock.store.redis.link import Argument
from penstock.store.redis.links import read_group, read_outcome
from penstock.store.redis.runner import Runner
from penstock.store.redis.steps import Steps


class Tie(msgspec.Struct, frozen=True):
    """What a task says that it is tied to."""

    id: int
    state: str
    address: str | None
    group_no: int | None


class Links:
    """One look at a tube's addresses, outcomes and groups.

    Outcomes may be forgotten meanwhile, which no counter tells: so what is read first may say more than the rest.
    """

    def __init__(self, runner: Runner, tube: Tube) -> None:
        self.tube = tube
        self.kept = {name for name, _ in scan(runner, tube, "kept")}
        self.outcomes = {task_id(key): read_outcome(stored)[0] for key, stored in scan(runner, tube, "outcomes")}
        self.addresses = {address.decode(): task_id(key) for address, key in scan(runner, tube, "addresses")}
        self.moving = {int(no) for no, _ in scan(runner, tube, "moving")}
        self.groups: dict[int, Group] = {}
        self.live: dict[str, int] = {}
        for name, stored in scan(runner, tube, "groups"):
            if name[:1] == b"g":
                self.groups[task_id(name)] = read_group(task_id(name), stored)
            elif name[:1] == b"n":
                self.live[name[1:].decode()] = int(stored)
        self.ties: list[Tie] = []

    def findings(self) -> Iterator[Finding]:
        """All of them."""
        for id, what, remedy in (*self._tasks(), *self._loose()):
            yield Finding(self.tube.name, id, what, remedy)
        for no, problems in self._groups().items():
            for what, remedy in problems:
                yield Finding(self.tube.name, None, f"group {self.groups[no].name}: {what}", remedy)

    def mend(self, steps: Steps, now: int | None) -> None:
        """In bounded steps, the tasks first: groups are counted from them."""
        pairs: list[Argument] = []
        for id, _, _ in self._tasks():
            pairs += ["task", task_key(id)]
        for address in self._dangling():
            pairs += ["address", address]
        for name in self._endless():
            pairs += ["outcome", name]
        for start in range(0, len(pairs), ADVANCE_STEP):
            steps.run("repair_relations", self.tube, Effects(), *pairs[start : start + ADVANCE_STEP], now=now)
        for no in self._groups():
            early = [task_key(tie.id) for tie in self.ties if tie.group_no == no and tie.state not in (UNSTARTED, "!")]
            for start in range(0, max(1, len(early)), ADVANCE_STEP):
                steps.run("repair_group", self.tube, Effects(), no, *early[start : start + ADVANCE_STEP], now=now)

    def _tasks(self) -> Iterator[tuple[int, str, str]]:
        for tie in self.ties:
            if tie.address is not None and self.addresses.get(tie.address) != tie.id:
                yield tie.id, f"address {tie.address} is that of another task, or of none", "repair believes the task"
            if tie.id in self.outcomes:
                yield tie.id, "has an outcome, but is still there", "repair forgets the outcome"
            if tie.group_no is not None and tie.group_no not in self.groups:
                yield tie.id, "its group is not there", "repair takes it out of the group"

    def _loose(self) -> Iterator[tuple[int | None, str, str]]:
        for address in self._dangling():
            yield None, f"address {address} leads to no task and to no outcome", "repair forgets it"
        for name in self._endless():
            yield task_id(name[1:7]), "its outcome has no end", "repair forgets the outcome"

    def _endless(self) -> list[bytes]:
        names = (b"o" + task_key(id) + address.encode() for id, address in self.outcomes.items())
        return [name for name in names if name not in self.kept]

    def _dangling(self) -> list[str]:
        there = {tie.id for tie in self.ties} | self.outcomes.keys()
        return [address for address, id in self.addresses.items() if id not in there]

    def _groups(self) -> dict[int, list[tuple[str, str]]]:
        """The groups that are not as their tasks say."""
        states: dict[int, Counter[str]] = defaultdict(Counter)
        for tie in self.ties:
            if tie.group_no is not None:
                states[tie.group_no][tie.state] += 1
        found = {no: list(self._problems(group, states[no])) for no, group in self.groups.items()}
        return {no: problems for no, problems in found.items() if problems}

    def _problems(self, group: Group, states: Counter[str]) -> Iterator[tuple[str, str]]:
        left = states.total()
        if group.left != left:
            yield f"says {group.left} tasks are left, there are {left}", "repair counts them anew"
        if group.total < left:
            yield f"says {group.total} tasks were put, there are {left}", "repair counts them anew"
        if group.state in rules.OVER and left:
            yield f"is {group.state}, but has {left} tasks left", "repair takes it up again"
        if group.state in rules.OVER and not left and b"g" + task_key(group.no) not in self.kept:
            yield "is remembered for ever", "repair sets its end"
        if group.state in (rules.STARTED, rules.CANCELLING) and not left:
            yield "should have ended", "repair ends it"
        if group.state == rules.OPEN and (early := left - states[UNSTARTED] - states["!"]):
            yield f"is not started, but {early} of its tasks can be taken", "repair holds them back"
        waiting = {rules.STARTED: states[UNSTARTED], rules.CANCELLING: left}.get(group.state, 0)
        if waiting and group.no not in self.moving:
            yield f"{waiting} tasks do not follow its record", "repair lets them follow"
        if (self.live.get(group.name) == group.no) != (group.state in rules.LIVE):
            yield "its name leads to another group, or to none", "repair names it anew"

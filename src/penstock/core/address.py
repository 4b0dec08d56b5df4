"""Puts with an address: refuse, ignore or replace when another task already has the address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.core.task import UNSTARTED, Entry, Record
from penstock.errors import DuplicateAddress


class Plan(msgspec.Struct, frozen=True):
    """What a put will do: the tasks to store, the stored tasks to replace, and the result of each entry.

    A place of 0 or more is an index into `fresh`; a negative one is the negated id of a stored task.
    """

    fresh: list[Entry]
    replaced: dict[int, Entry]
    places: list[int]


def linked(entries: Iterable[Entry]) -> bool:
    """Return whether any entry has an address or a group, so that the put needs a plan."""
    # Not any(): a generator costs twice as much, and every put calls this.
    return True in [entry.address is not None or entry.group is not None for entry in entries]


def addresses(entries: Iterable[Entry]) -> list[str]:
    """The addresses that a put must look up."""
    return [entry.address for entry in entries if entry.address is not None]


def plan_put(entries: Sequence[Entry], there: Mapping[str, Record]) -> Plan:
    """Plan the entries as if they were put one by one. Raises DuplicateAddress for the first that is not allowed.

    `there`: the live tasks that hold these addresses, by address.
    """
    named = addresses(entries)
    if not there and len(set(named)) == len(named):  # the usual case: only new tasks
        return Plan(list(entries), {}, list(range(len(entries))))
    plan = Plan([], {}, [])
    held = {address: -record.id for address, record in there.items()}
    for entry in entries:
        place = None if entry.address is None else held.get(entry.address)
        if place is None:
            place = len(plan.fresh)
            plan.fresh.append(entry)
            if entry.address is not None:
                held[entry.address] = place
        elif entry.duplicate in ("replace", "refresh"):
            _replace(plan, place, entry, there)
        elif entry.duplicate != "ignore":
            raise duplicate(entry.address)
        plan.places.append(place)
    return plan


def _replace(plan: Plan, place: int, entry: Entry, there: Mapping[str, Record]) -> None:
    if place >= 0:
        earlier = plan.fresh[place]
        if entry.duplicate == "refresh":
            plan.fresh[place] = msgspec.structs.replace(earlier, payload=entry.payload)
            return
        plan.fresh[place] = msgspec.structs.replace(
            earlier, payload=entry.payload, rank1=entry.rank1, rank2=entry.rank2, pri=entry.pri, ttl=entry.ttl,
            delay=entry.delay,
        )  # fmt: skip
        return
    assert entry.address is not None
    state = there[entry.address].state
    if state in "t!":
        raise duplicate(entry.address, state)
    plan.replaced[-place] = entry


def replaced(record: Record, entry: Entry, now: int) -> Record:
    """The task with the data, delay, pri, ttl and rank of the entry; its id and everything else stay.

    `refresh` changes only the data. In a micro-queue kind, the store decides between the states r and q.
    """
    if entry.duplicate == "refresh":
        return msgspec.structs.replace(record, payload=entry.payload)
    expires = None if entry.ttl is None else now + entry.ttl + entry.delay
    state = UNSTARTED if record.state == UNSTARTED else "~" if entry.delay else "r"
    return msgspec.structs.replace(
        record,
        state=state,
        rank1=entry.rank1.value(record.id, now),
        rank2=entry.rank2.value(record.id, now),
        pri=entry.pri,
        created=now,
        expires=expires,
        at=now + entry.delay if entry.delay else expires,
        payload=entry.payload,
    )


def duplicate(address: str | None, state: str = "") -> DuplicateAddress:
    """The error for a put whose address is in use. `state`: that of the task that has it, if it cannot be replaced."""
    why = "give on_duplicate, or another address"
    if state:
        what = "taken" if state == "t" else "buried"
        why = f"it is {what}, and only a ready or delayed one can be replaced"
    return DuplicateAddress(f"address {address} is in use in this tube: {why}")

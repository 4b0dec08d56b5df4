"""What becomes of a put whose address is in use: an error, nothing, or new content for the one that is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.core.task import UNSTARTED, Entry, Record
from penstock.errors import DuplicateAddress


class Plan(msgspec.Struct, frozen=True):
    """A put, decided: the tasks to store, those to give new content, and where the answer to each entry stands.

    A place from 0 counts in `fresh`; a negative one is the id of a task that is there, negated.
    """

    fresh: list[Entry]
    replaced: dict[int, Entry]
    places: list[int]


def linked(entries: Iterable[Entry]) -> bool:
    """Whether a put needs a plan: the others are stored as they come."""
    # Not any(): a generator costs twice as much, and this stands before every put.
    return True in [entry.address is not None or entry.group is not None for entry in entries]


def addresses(entries: Iterable[Entry]) -> list[str]:
    """The addresses that a put must look up."""
    return [entry.address for entry in entries if entry.address is not None]


def plan_put(entries: Sequence[Entry], there: Mapping[str, Record]) -> Plan:
    """As if the entries were put one after the other; DuplicateAddress for the first that may not be.

    `there` are the live tasks that hold these addresses.
    """
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
    """The task with the entry's data, delay, pri and ttl, at the place these give it; all else stays, its id too.

    `refresh` changes the data alone. Where it says r, a store of a micro-queue kind decides between r and q.
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
    """The error of a put whose address is in use; with the state of that task where it may not be replaced."""
    why = "give on_duplicate, or another address"
    if state:
        what = "taken" if state == "t" else "buried"
        why = f"it is {what}, and only a ready or delayed one can be replaced"
    return DuplicateAddress(f"address {address} is in use in this tube: {why}")

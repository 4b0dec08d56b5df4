"""A task in memory: made from a put, its place in the order, and whether its ttl is over."""

from __future__ import annotations

from penstock.core.group import OPEN, Group
from penstock.core.task import UNSTARTED, Entry, Record
from penstock.store.memory.heap import Key


def place(record: Record) -> Key:
    """Its place in the order of takes."""
    return (record.rank1, record.rank2, record.id)


def expired(record: Record, now: int) -> bool:
    """Past its ttl, and so gone for everybody; a taken one lives until it comes back."""
    return record.expires is not None and record.expires <= now and record.state != "t"


def made(entry: Entry, id: int, now: int, group: Group | None) -> Record:
    """The task as it stands when it is put; r where a micro-queue may make it q."""
    unstarted = group is not None and group.state == OPEN
    expires = None if entry.ttl is None else now + entry.ttl + entry.delay
    return Record(
        id=id,
        state=UNSTARTED if unstarted else "~" if entry.delay else "r",
        rank1=entry.rank1.value(id, now),
        rank2=entry.rank2.value(id, now),
        pri=entry.pri,
        utube=entry.utube,
        attempts=0,
        lease=0,
        created=now,
        taken=None,
        expires=expires,
        at=now + entry.delay if entry.delay else expires,
        ttr=entry.ttr,
        max_attempts=entry.max_attempts,
        owner=None,
        reason=None,
        callback=entry.callback,
        payload=entry.payload,
        address=entry.address,
        reply_to=entry.reply_to,
        group=entry.group,
        group_no=None if group is None else group.no,
    )

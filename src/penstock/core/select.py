"""Selections of tasks that a broker passes to a store: listings, and sweeps over many tasks."""

from __future__ import annotations

from typing import Literal

import msgspec


class Find(msgspec.Struct, frozen=True):
    """Tasks above an id, in id order, of one public status if given, without those past their ttl."""

    status: str | None
    after: int
    limit: int


class Holders(msgspec.Struct, frozen=True):
    """Taken tasks of a micro-queue, oldest hand-out first."""

    utube: str
    limit: int


class Deliveries(msgspec.Struct, frozen=True):
    """A range of the messages of a reliable tube: delivered ones in delivery order, or undelivered ones in put order.

    A negative start counts from the end; a start outside the list selects nothing.
    """

    start: int
    limit: int
    delivered: bool


Listing = Find | Holders | Deliveries


class Sweep(msgspec.Struct, frozen=True):
    """A verb on all tasks of a state, or on up to `count` of them.

    kick: buried tasks, in take order. release: every taken task, of any session. delete: everything, leases too.
    recover: delivered messages from the first on, up to one that was delivered less than `elapsed` ms ago; each is
    handed out again, once per call, none while the tube is paused.
    """

    verb: Literal["kick", "release", "delete", "recover"]
    count: int | None = None
    elapsed: int = 0

"""What can be listed of a tube, and swept: values that brokers pass to a store."""

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
    """Messages of a reliable tube from a place on, delivered or not, in the order of hand-outs or of puts.

    A negative start counts from the end; a start outside of the list gives none. `there`: how many there are, if known.
    """

    start: int
    limit: int
    delivered: bool
    there: int = 0

    @property
    def backwards(self) -> bool:
        """Whether the place is nearer to the end."""
        return 2 * self.start > self.there > 0


Listing = Find | Holders | Deliveries


class Sweep(msgspec.Struct, frozen=True):
    """A verb on the tasks of a state, up to `count` of them if given.

    kick: buried tasks, in take order. release: every taken task, whoever holds it. delete: everything, leases too.
    recover: delivered messages from the first on, up to one that was delivered less than `elapsed` ms ago; each is
    handed out again, once per call, none while the tube is paused.
    """

    verb: Literal["kick", "release", "delete", "recover"]
    count: int | None = None
    elapsed: int = 0

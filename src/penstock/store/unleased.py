"""The part of the contract for kinds that lease nothing: `round` (hand-out by clock) and `reliable` (by delivery).

The calls of `store.base` do the work; in tubes of these kinds they promise, beyond what stands there:
- A task's own id is the text in `Record.address`, one task each at a time, found in O(log n). The integer id stays
  inside. Ends keep no outcome. `Move.name` stands in place of `Move.id`. `find` still goes by the integer.
- No hand-out has an owner, a lease number or a deadline. `take` needs a live handle as always, but the end of a
  session touches nothing. A hand-out counts and tells `take`.

`round`, one step a call:
- `put` looks up ids in its own step and decides by `core.address`: one that is there stays as it is (`ignore`), or gets
  new data alone (`refresh`: tells `put`, counts nothing); both need no room. One past its ttl makes way first.
- A task is always `r`. Its rank1 is the moment of its last hand-out, 0 before the first; ties go by rank2, then id.
- `take` gives up to count tasks with rank1 <= `core.handout.clock_limit`, in order, each once, never one past its ttl,
  and makes of each what `core.handout.clocked` says. When it gives none, `wait_ms` also counts the wait of the first
  one (`clock_wait`), so that a blocked taker sleeps exactly until then.

`reliable`, one step a call:
- `put` names each message by `core.ids.next_marks`, from the tube's last (ms, seq), which is kept with the tube also
  when all messages are gone. The order of names is the order of integer ids.
- Undelivered is `r`, in put order. `take` makes of each message what `core.handout.delivered` says: `t` without an
  owner, rank1 a serial that grows with every hand-out of the tube. That is the order of the delivered ones.
- `settle` of `ack` removes delivered ones, whoever calls: the guard of `core.lifecycle` holds with session None.

A reply that ends up in such a tube is named by the store: a message as any other, an element `reply-<integer id>`,
with as many `-` behind it as it takes to be the only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.core.options import Tube
from penstock.core.task import Record

if TYPE_CHECKING:
    from penstock.store.base import Settled


class UnleasedStore(Protocol):
    """What `store.base.Store` takes from here."""

    def named(self, tube: Tube, names: Sequence[str], *, now: int | None = None) -> list[Record | None]:
        """The tasks with these ids; one past its ttl is None."""

    def recover(self, tube: Tube, count: int, elapsed: int, *, now: int | None = None) -> Settled:
        """Hand out again up to count delivered messages, from the first on, up to one that is younger than so many ms.

        Each once a call, although each goes to the end (`core.handout.delivered`); none while the tube is paused.
        """

    def inspect(self, tube: Tube, start: int, count: int, *, pending: bool) -> list[Record]:
        """Up to count messages from a place on, of the undelivered or (pending) the delivered, in their order.

        A negative start counts from the end; a start outside of the list gives none.
        """

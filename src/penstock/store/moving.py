"""The part of the contract by which a tube leaves one store and comes into another, or into a file and out of it.

A tube arrives under a name that nobody can give (`arriving`), so that no taker finds it, and lands under its own in
one step. One that leaves is sealed: in one step its name becomes `gone`, every handle of it finds no tube any more,
and nothing in it changes again. The sealed row stays when its tasks are erased, and says where the tube went.

Promises, beyond those of `store.base`:
- `load_tube` and `save_tube` of a name that is arriving or gone, and has no other tube, raise NoSuchTube, which says
  so; handles of a sealed tube get the same. `load_tubes` leaves out both.
- The `read_…` calls and `tally` also work on a sealed tube, and change nothing.
- Each call may be made again after a crash: `adopt` passes over what is there, `land_tube` counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.core.transfer import (
    MOVE_STEP,
    Kept,
    Parcel,
    Tally,
    arriving,
    erased_options,
    gone,
    hidden,
    is_arriving,
    is_erased,
    is_hidden,
    is_sealed,
    moved_to,
    named,
    own_options,
    plain_name,
    seal_refused,
    sealed_options,
    stands_for_ready,
)

__all__ = [
    "MOVE_STEP",
    "Kept",
    "MovingStore",
    "Parcel",
    "Tally",
    "arriving",
    "erased_options",
    "gone",
    "hidden",
    "is_arriving",
    "is_erased",
    "is_hidden",
    "is_sealed",
    "moved_to",
    "named",
    "own_options",
    "plain_name",
    "seal_refused",
    "sealed_options",
    "stands_for_ready",
]


class MovingStore(Protocol):
    """What `store.base.Store` takes from here."""

    def seal_tube(self, tube: Tube, to: str) -> None:
        """Nobody reaches it any more; whoever tries is told `to`. TubeBusy while a task is leased, or a group's tasks
        follow its record."""

    def erase_tube(self, tube: Tube) -> None:
        """Remove all that is in a sealed or arriving tube, in bounded steps, without outcomes and replies: its tasks
        live elsewhere. A sealed one's row stays, and says so at the end (`is_erased`)."""

    def load_sealed(self) -> list[Tube]:
        """All sealed tubes, by name."""

    def forget_tube(self, tube: Tube) -> None:
        """Forget a sealed tube of which nothing is left, and where it went: its name is free again."""

    def tally(self, tube: Tube) -> Tally:
        """What it knows beside its tasks."""

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        """Up to limit tasks above an id, in id order, as they are stored."""

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        """Up to limit groups that are not over, above a number, in order."""

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        """Up to limit outcomes of tasks above an id, in id order."""

    def adopt(self, tube: Tube, parcel: Parcel) -> None:
        """Store what comes from elsewhere, tasks under their own ids; those up to the last id are there already.

        Ids up to `upto` that none has were put and are done. Nothing else is counted, nobody is woken.
        """

    def land_tube(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        """An arriving tube gets its name; TubeExists when that is in use.

        In the same step the calls of the tally are added to its own, and it learns the last message id and how many
        tasks its groups ever had.
        """

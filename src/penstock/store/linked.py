"""The part of the contract that ties tasks to what is beside them: addresses, outcomes, replies and groups.

Promises, beyond those of `store.base`:
- `put` looks up addresses and groups in its own step, decides by `core.address`, and stores all entries or none.
- However a task ends, its outcome is kept, its reply is put and its group counts it in that same step. A group that
  this leaves without tasks is over in that step, and its work is put once.
- A reply is never refused for lack of room. Work of a group takes the room of the task that went.
- `take`, `settle` and `advance` treat tasks of a cancelled group as gone, whether or not they are removed yet.
- `advance` moves tasks after their group's record, forgets outcomes and groups past their retention, in bounded steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core.ending import Sought
from penstock.core.group import Group
from penstock.core.options import Tube

if TYPE_CHECKING:
    from penstock.store.base import Advanced


class LinkedStore(Protocol):
    """What `store.base.Store` takes from here."""

    def seek(self, tube: Tube, address: str, *, now: int | None = None) -> Sought:
        """The live task of that address, or how the last one ended, or nothing."""

    def sought(self, tube: Tube, id: int, *, now: int | None = None) -> Sought:
        """The same of the addressed task with that id, also when its address was put again."""

    def open_group(self, tube: Tube, name: str, *, now: int | None = None) -> Group:
        """The live group of that name, begun when there is none."""

    def get_group(self, tube: Tube, no: int, *, now: int | None = None) -> Group | None:
        """The group with that number; None when it is past its retention or never was."""

    def set_group_work(
        self, tube: Tube, no: int, *, end: bytes | None = None, cancel: bytes | None = None, now: int | None = None
    ) -> bool:
        """Set what is put at the group's end or after its cancel; False when it has ended."""

    def turn_group(self, tube: Tube, no: int, to: str, *, now: int | None = None) -> Advanced:
        """Start or cancel it (`core.group.STARTED`, `CANCELLING`) and move some of its tasks.

        A second time does nothing. TubeFull when it has no task, so that its work would need room that there is not.
        """

    def live_groups(self, tube: Tube, after: str, limit: int) -> list[Group]:
        """Up to limit groups that are open or started, in the order of their names, from behind that name."""

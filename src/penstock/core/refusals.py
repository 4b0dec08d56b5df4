"""The errors for tubes that cannot serve a call and for calls that were partly applied, the same on every store."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from penstock.core.options import Tube
from penstock.errors import NoSuchTube, OutcomeUnknown, StoreError, TubeBusy, TubeExists, TubeFull


def tube_missing(tube: Tube) -> NoSuchTube:
    """The error for a handle whose tube was dropped."""
    return NoSuchTube(f"tube {tube.name} does not exist: open it with broker.tube(), which creates it")


def tube_exists(name: str) -> TubeExists:
    """The error for creating a tube that exists."""
    return TubeExists(f"tube {name} exists already: open it with broker.tube({name!r}), or choose another name")


def name_in_use(name: str) -> TubeExists:
    """The error for an imported tube whose name is in use."""
    return TubeExists(f"tube {name} exists already: drop it, or choose another name")


def tube_taken(tube: Tube) -> TubeBusy:
    """The error for dropping a tube that has taken tasks."""
    return TubeBusy(f"tube {tube.name} has taken tasks: ack or release them, or truncate() it first")


def tube_awaited(tube: Tube) -> TubeBusy:
    """The error for dropping a tube while a take waits."""
    return TubeBusy(f"tube {tube.name} has takers waiting in take: let them time out, or close them first")


def refuse_busy(tube: Tube, *, taken: object, waiting: object) -> None:
    """Raise TubeBusy if a tube cannot be dropped."""
    if taken:
        raise tube_taken(tube)
    if waiting:
        raise tube_awaited(tube)


def tube_full(tube: Tube, total: int, wanted: int) -> TubeFull:
    """The error for a put into a full tube."""
    return TubeFull(
        f"tube {tube.name} holds {total} of {tube.capacity} tasks, no room for {wanted} more: "
        "give put a timeout, or take and ack faster"
    )


class partly_applied:  # noqa: N801
    """Context of one step of a call with several steps. An error after the first says that the call was partly applied.

    `done`: the tasks that were applied, or None instead of those that were not.
    """

    __slots__ = ("_done",)

    def __init__(self, done: Sequence[object]) -> None:
        self._done = done

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not isinstance(error, StoreError) or isinstance(error, OutcomeUnknown):
            return
        if done := sum(task is not None for task in self._done):
            what = f"the call was partly applied ({done} tasks): check before retrying"
            raise OutcomeUnknown(f"{error}; {what}") from error

"""What a store raises where a tube cannot serve a call: the same words in every store."""

from __future__ import annotations

from penstock.core.options import Tube
from penstock.errors import NoSuchTube, TubeBusy, TubeExists, TubeFull


def tube_missing(tube: Tube) -> NoSuchTube:
    """The error for a handle whose tube was dropped."""
    return NoSuchTube(f"tube {tube.name} does not exist (any more): open it with broker.tube(), which creates it")


def tube_exists(name: str) -> TubeExists:
    """The error for creating a tube that exists."""
    return TubeExists(f"tube {name} exists already: open it with broker.tube({name!r}), or choose another name")


def name_in_use(name: str) -> TubeExists:
    """The error of a tube that cannot land, because another has its name."""
    return TubeExists(f"tube {name} exists already: drop it, or choose another name")


def tube_taken(tube: Tube) -> TubeBusy:
    """The error for dropping a tube that has taken tasks."""
    return TubeBusy(f"tube {tube.name} has taken tasks: ack or release them, or truncate() it first")


def tube_awaited(tube: Tube) -> TubeBusy:
    """The error for dropping a tube while someone waits in take."""
    return TubeBusy(f"tube {tube.name} has takers waiting in take: let them time out, or close them first")


def refuse_busy(tube: Tube, *, taken: object, waiting: object) -> None:
    """TubeBusy where a tube cannot be dropped."""
    if taken:
        raise tube_taken(tube)
    if waiting:
        raise tube_awaited(tube)


def tube_full(tube: Tube, total: int, wanted: int) -> TubeFull:
    """The error of a put that found no room."""
    return TubeFull(
        f"tube {tube.name} holds {total} of {tube.capacity} tasks, no room for {wanted} more: "
        "give put a timeout, or take and ack faster"
    )

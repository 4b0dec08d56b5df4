"""Micro-queues as statements of a packet: the rule that the first (limit - taken) ready tasks of each are its heads.

A packet stores tasks that become ready as waiting, counts them as such, and then promotes the first of them. It has
locked the rows of the micro-queues, which are in @p_us. @p_l is the limit, @p_fair whether they take turns, and
@p_gained counts the tasks that became takeable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE
from penstock.store.mysql.queries import Q
from penstock.store.mysql.wire import Prepared, Raw, fill, literal

# How many tasks of each micro-queue one statement promotes, if the limit is above one.
_WIDTH = 16


def _nth(state: str, place: int) -> Raw:
    return Raw(fill(Q.nth, state=state, way=Raw("" if state == "q" else "DESC"), place=place))


@cache
def promote(width: int) -> list[str]:
    """Make heads of the first tasks that wait, up to `width` per micro-queue."""
    firsts = [f"IF(@p_l - l.taken - l.heads > {place}, {_nth('q', place)}, NULL)" for place in range(width)]
    room = Raw("l.waiting > 0 AND l.taken + l.heads < @p_l")
    find = Prepared(fill(Q.find_promoted, firsts=Raw(", ".join(firsts)), condition=room))
    counted = Raw(", l.heads = l.heads + 1, l.waiting = l.waiting - 1" if width == 1 else "")
    change = Prepared(fill(Q.promote, counted=counted))
    return [find, *([] if width == 1 else [Q.promote_in_queues]), change]


@cache
def pass_on() -> list[str]:
    """Make heads of the first tasks that wait, where the query `pass_on` has counted them as heads."""
    find = fill(Q.find_promoted, firsts=_nth("q", 0), condition=Raw("l.heads = 1"))
    return [Prepared(find), Prepared(fill(Q.promote, counted=Raw("")))]


@cache
def swap(width: int) -> list[str]:
    """Let waiting tasks take the places of heads that they precede."""
    pairs = [fill(Q.swap_pair, waiting=_nth("q", place), head=_nth("r", place), place=place) for place in range(width)]
    return [Prepared(fill(Q.find_swaps, pairs=Raw(" UNION ALL ".join(pairs)))), Q.swap]


def make_heads(tube: Tube, most: int, *, overtaking: bool) -> list[str]:
    """Promote up to `most` tasks per micro-queue. `overtaking`: they may precede heads that there are."""
    needed = min(tube.utube_limit, most)
    width = 1 if needed == 1 else _WIDTH
    rounds = -(-needed // width)
    return promote(width) * rounds + (swap(width) * rounds if overtaking else [])


def labels(names: Iterable[str | None]) -> str:
    """Micro-queues for @p_us, in the order in which they are locked."""
    found = sorted({(name or NO_UTUBE).encode() for name in names})
    return msgspec.json.encode([name.hex().upper() for name in found]).decode()


def setting(tube: Tube, names: str | None) -> str:
    """Set what the statements on micro-queues of a tube read."""
    return f"SET @p_t={tube.no},@p_l={tube.utube_limit},@p_fair={int(tube.fair)},@p_gained=0,@p_us={literal(names)}"


def enter(tube: Tube, counts: Mapping[str, int]) -> str:
    """Add waiting tasks to micro-queues, which are created where they are missing, and locked in their order.

    An empty one of a fair tube begins its turn.
    """
    rows = ",".join(
        f"({tube.no},{literal(label.encode())},{counts[label]},@p_fair*@p_now)"
        for label in sorted(counts, key=str.encode)
    )
    return (
        f"INSERT INTO penstock_utube (tube,utube,waiting,turn) VALUES {rows} ON DUPLICATE KEY UPDATE "
        "turn=IF(@p_fair AND penstock_utube.taken=0 AND heads=0 AND waiting=0,GREATEST(@p_now,turn+1),turn),"
        "waiting=waiting+VALUES(waiting)"
    )

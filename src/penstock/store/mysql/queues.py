"""Micro-queues as statements of a packet: the rule that the first (limit - taken) ready tasks of each are its heads.

A packet writes tasks that become ready as waiting, counts them there, and then promotes the first of them. Whoever does
so has locked the rows of the micro-queues, whose names stand in @p_us. @p_l is the limit, @p_fair whether they take
turns, @p_gained counts what became takeable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE
from penstock.store.mysql.pool import Prepared, Statement
from penstock.store.mysql.queries import Q
from penstock.store.mysql.wire import literal

# So many of each micro-queue are promoted in one statement, where it may be more than one.
_WIDTH = 16

_QUEUES = (
    "JSON_TABLE(CAST(@p_us AS CHAR), '$[*]' COLUMNS (u VARCHAR(400) CHARACTER SET ascii PATH '$')) u STRAIGHT_JOIN "
    "penstock_utube l FORCE INDEX (PRIMARY) ON l.tube = @p_t AND l.utube = UNHEX(u.u)"
)


def _nth(state: str, place: int) -> str:
    """The task of a micro-queue at that place: of those that wait from the first on, of its heads from the last."""
    way = "" if state == "q" else " DESC"
    return (
        f"(SELECT k.pk FROM penstock_task k FORCE INDEX (penstock_queued) WHERE k.tube = @p_t AND "
        f"k.place = CONCAT('{state}', l.utube) ORDER BY k.rank1{way}, k.rank2{way}, k.pk{way} LIMIT 1 OFFSET {place})"
    )


@cache
def _promote(width: int) -> list[Statement]:
    firsts = [f"IF(@p_l - l.taken - l.heads > {place}, {_nth('q', place)}, NULL)" for place in range(width)]
    find = (
        "SELECT CONCAT('[', GROUP_CONCAT(x.p), ']') INTO @p_p FROM (SELECT "
        f"CONCAT_WS(',', {', '.join(firsts)}) AS p FROM {_QUEUES} "
        "WHERE l.waiting > 0 AND l.taken + l.heads < @p_l) x WHERE x.p <> ''"
    )
    # One for each micro-queue: then its row is joined once, and can be counted in the same statement.
    counted = [Prepared(f"{Q.promoted}, l.heads = l.heads + 1, l.waiting = l.waiting - 1")]
    several = [Prepared(Q.promoted_queues), Prepared(Q.promoted)]
    return [Prepared(find), *(counted if width == 1 else several), Prepared(Q.gained)]


@cache
def pass_on() -> list[Statement]:
    """Make heads of the first that wait in micro-queues of one place each, which `pass_on` of queries.sql counted."""
    find = f"SELECT CONCAT('[', GROUP_CONCAT({_nth('q', 0)}), ']') INTO @p_p FROM {_QUEUES} WHERE l.heads = 1"
    return [Prepared(find), Prepared(Q.promoted), Prepared(Q.gained)]


@cache
def _swap(width: int) -> list[Statement]:
    """Those that wait take the places of heads that they come before."""
    pairs = " UNION ALL ".join(
        f"SELECT {_nth('q', place)} AS a, {_nth('r', place)} AS b FROM {_QUEUES} "
        f"WHERE l.waiting > {place} AND l.heads > {place}"
        for place in range(width)
    )
    find = (
        "SELECT CONCAT('[', GROUP_CONCAT(CONCAT('[', q.pk, ',', h.pk, ']')), ']') INTO @p_p "
        f"FROM ({pairs}) x STRAIGHT_JOIN penstock_task q FORCE INDEX (PRIMARY) ON q.pk = x.a "
        "STRAIGHT_JOIN penstock_task h FORCE INDEX (PRIMARY) ON h.pk = x.b "
        "WHERE (q.rank1, IF(@p_fair, 0, q.rank2), q.pk) < (h.rank1, IF(@p_fair, 0, h.rank2), h.pk)"
    )
    return [Prepared(find), Prepared(Q.swapped)]


def make_heads(tube: Tube, most: int, *, overtaking: bool) -> list[Statement]:
    """Promote; `most`: so many of one micro-queue may have to become heads. `overtaking`: perhaps before others."""
    needed = min(tube.utube_limit, most)
    width = 1 if needed == 1 else _WIDTH
    rounds = -(-needed // width)
    return _promote(width) * rounds + (_swap(width) * rounds if overtaking else [])


def labels(names: Iterable[str | None]) -> str:
    """Micro-queues for @p_us, in the order in which they are locked."""
    found = sorted({(name or NO_UTUBE).encode() for name in names})
    return msgspec.json.encode([name.hex().upper() for name in found]).decode()


def setting(tube: Tube, names: str | None) -> str:
    """What the statements on the micro-queues of a tube need to be set."""
    return f"SET @p_t={tube.no},@p_l={tube.utube_limit},@p_fair={int(tube.fair)},@p_gained=0,@p_us={literal(names)}"


def enter(tube: Tube, counts: Mapping[str, int]) -> str:
    """Let so many tasks wait in micro-queues, which are made where they are missing, and locked in their order.

    One of a fair tube that was empty begins its turn.
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

"""Acks, releases and the other moves of taken tasks: those that need no rule are one statement, others are decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import GONE, Effects
from penstock.core.task import Record
from penstock.engine.port import ByIds, ByNames, Step
from penstock.engine.work import Work


def are_plain_acks(moves: Sequence[Move]) -> bool:
    """Whether these are acks of different tasks, which a database may remove without reading them."""
    if len(moves) == 1:
        return moves[0].verb == "ack"
    return {move.verb for move in moves} == {"ack"} and len({move.shown for move in moves}) == len(moves)


def ack(step: Step, tube: Tube, moves: Sequence[Move], records: list[Record | None], effects: Effects) -> Sequence[int]:
    """Ack without reading what can be; the places of the moves that are left."""
    acked = step.ack(tube, moves)
    if acked.beside is not None:
        effects.add(acked.beside)
    if not acked.keys:
        return () if acked.judged else range(len(moves))
    effects.removed[tube.no] = effects.removed.get(tube.no, 0) + len(acked.keys)
    if acked.readied > 0:
        effects.readied[tube.no] = acked.readied
    if acked.kept:
        effects.ended += [("task", tube.no, id) for id in acked.kept]
    if tube.kind.leased and len(acked.keys) == len(moves):
        records[:] = [GONE] * len(moves)
        return ()
    gone = {key: GONE if tube.kind.leased else replace(GONE, address=str(key)) for key in acked.keys}
    records[:] = [gone.get(move.shown) for move in moves]
    return () if acked.judged else [place for place, record in enumerate(records) if record is None]


def settle(
    step: Step, tube: Tube, moves: Sequence[Move], places: Iterable[int], records: list[Record | None],
    effects: Effects, *, guess: bool,
) -> list[int]:  # fmt: skip
    """Load, decide, flush, for one move of each task; the places that are left: later moves of one task, and those
    that others overtook.

    With `guess`, what the holders of all tasks know of them is not loaded; what cannot be decided by it is left.
    """
    work = Work(step, tube, effects)
    batch: dict[int | str, int] = {}
    later = [place for place in places if batch.setdefault(moves[place].shown, place) != place]
    seen = {shown: record for shown, place in batch.items() if (record := _held(moves[place]))} if guess else {}
    guess = bool(seen) and len(seen) == len(batch)
    known = seen if guess else load_by(work, list(batch))
    after: dict[int, tuple[int, Record]] = {}
    for shown, place in batch.items():
        record = known.get(shown)
        if work.heavy or (guess and record is not None and work.lacks_group(record)):
            later.append(place)
            continue
        if record is None or work.remove_if_gone(record):
            continue
        change = lifecycle.decide(record, moves[place], work.now)
        if guess and (change is None or "ttl" in change.events):  # the database's own clock must say so
            later.append(place)
        elif change is not None:
            after[record.id] = place, work.change(record, change)
    missed, _ = work.flush()
    for id, (place, record) in after.items():
        if id in missed:
            later.append(place)
        else:
            records[place] = record
    return sorted(later)


def load_by(work: Work, keys: Sequence[int | str]) -> dict[int | str, Record]:
    """Tasks by their ids, or by their addresses, as the keys are."""
    if keys and isinstance(keys[0], str):
        return {record.address or "": record for record in work.load(ByNames(cast("Sequence[str]", keys)))}
    return {record.id: record for record in work.load(ByIds(cast("Sequence[int]", keys)))}


def _held(move: Move) -> Record | None:
    """The task as its holder knows it."""
    record = move.seen
    if record is None or record.attempts > 1:  # what was handed out before may have errors, which a take does not read
        return None
    return record if record.state == "t" and record.lease == move.lease else None

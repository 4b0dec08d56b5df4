"""The store's calls that do what is due, and those that then go through a whole tube."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core import lifecycle
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import ADVANCE_STEP, Advanced, Effects, Settled
from penstock.store.sqlite import following, sessions, tubes
from penstock.store.sqlite.calls import Calls
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import Step


class AdvancingCalls(Calls):
    """Keeps what the contract says of advance, kick, release_all and truncate."""

    def kick(self, tube: Tube, count: int, *, now: int | None = None) -> Settled:
        def kicked(step: Step) -> list[Record | None]:
            rows = list(step.execute(Q.buried, (tube.no, count)))
            return [step.apply(record, lifecycle.kicked(record)) for record in (Record(*row) for row in rows)]

        return self._sweep(tube, kicked, now)

    def release_all(self, tube: Tube, *, now: int | None = None) -> Settled:
        def released(step: Step) -> list[Record | None]:
            records = [Record(*row) for row in step.execute(Q.taken, (tube.no,))]
            return [step.apply(record, lifecycle.came_back(record, step.now, "release")) for record in records]

        return self._sweep(tube, released, now)

    def _sweep(self, tube: Tube, work: Callable[[Step], list[Record | None]], now: int | None) -> Settled:
        """Do what is due, then the work, in one transaction."""
        with self._write(tube) as db:
            step = self._step(db, tube, self._clock() if now is None else now, Effects())
            sessions.end_lapsed(db, tubes.load_all, step.now, step.effects)
            while self._advance(step, ADVANCE_STEP):
                pass
            return Settled(work(step), step.finish())

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP, now: int | None = None) -> Advanced:
        with self._write(tube) as db:
            now = self._clock() if now is None else now
            step = self._step(db, tube, now, Effects())
            sessions.end_lapsed(db, tubes.load_all, now, step.effects)
            more = self._advance(step, limit)
            self._forget(step)
            effects = step.finish()
            moments = db.execute(Q.look, (tube.no, "")).get[:3]
            return Advanced(more, until([moment for moment in moments if moment is not None], now), effects)

    def _forget(self, step: Step) -> None:
        """One bounded step of what is past its retention."""
        for query in (Q.sweep_outcomes, Q.sweep_groups):
            step.execute(query, (step.tube.no, step.now, ADVANCE_STEP))

    def _advance(self, step: Step, limit: int, *, moving: int = 1) -> bool:
        """One bounded step of what the clock and the groups demand of this tube; True when more is due."""
        rows = list(step.execute(Q.due, (step.tube.no, step.now, limit)))
        for record in (Record(*row) for row in rows):
            # An earlier one of this step may have changed it: promotion and demotion touch the state.
            current = step.record(record.id)
            if current is not None:
                step.apply(current, lifecycle.became_due(current, step.now))
        step.forget_idle_lanes()
        more = bool(moving) and following.follow(step, limit - len(rows))
        return more or len(rows) == limit

    def truncate(self, tube: Tube, *, now: int | None = None) -> Settled:
        """As the contract says; a task put while it runs has a higher id than the last one seen first."""
        everything = Settled([], Effects())
        with self._write(tube) as db:
            last = Step(db, tube, 0).last_id()
        while True:
            with self._write(tube) as db:
                step = self._step(db, tube, self._clock() if now is None else now, everything.effects)
                span = (step.key, step.key | last, tubes.REMOVE_STEP)
                rows = [Record(*row) for row in db.execute(Q.page, span)]
                for record in rows:
                    current = step.record(record.id)  # None: past its ttl, and gone by it
                    if current is not None:
                        everything.records.append(step.apply(current, lifecycle.removed(current, "delete")))
                step.finish()
            if len(rows) < tubes.REMOVE_STEP:
                return everything


def until(moments: list[int], now: int) -> int | None:
    """How long it is to the first of these moments; None: there is none."""
    return max(0, min(moments) - now) if moments else None

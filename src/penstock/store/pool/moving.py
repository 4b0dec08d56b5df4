"""A pool's calls by which tubes leave and arrive: each is over when the vault has it, which alone knows their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.refusals import name_in_use
from penstock.core.task import Record
from penstock.core.transfer import Kept, Parcel, Tally, erased_options, gone, is_sealed, seal_refused, sealed_options
from penstock.store.pool.closing import closed
from penstock.store.pool.mirror import PAGE
from penstock.store.pool.server import Interrupted
from penstock.store.pool.taking import TakingCalls
from penstock.store.pool.tubes import declaration
from penstock.store.pool.vault import Session


class PoolMoving(TakingCalls):
    """Keeps the contract of `store.contract.TransferStore`."""

    def seal_tube(self, tube: Tube, to: str) -> None:
        declared = declaration(gone(tube.name), tube.kind, sealed_options(tube.given, to))

        def seal(epoch: int) -> None:
            done: list[bool] = []

            def before(session: Session) -> None:
                if not done:  # else the transaction is begun anew
                    self._close(tube, epoch)
                    done.append(True)
                self._vault.rename(session, tube.no, gone(tube.name), declared)

            self._mirror.write(tube, closed(epoch), whole=True, before=before)

        self._persist(tube, seal)

    def _close(self, tube: Tube, epoch: int) -> None:
        with self._servers.strictly():
            refused = self._runner.in_epoch(str(epoch), "close_index", tube, closed(epoch))[1]
        if refused:
            raise seal_refused(tube, refused == 1)

    def erase_tube(self, tube: Tube) -> None:
        self._runner.on_tag("erase_tube", tube.no, idempotent=True)
        self._vault.erase_tube(tube.no, PAGE)
        if is_sealed(tube):
            declared = declaration(tube.name, tube.kind, erased_options(tube))
            self._vault.write(tube.no, lambda session: self._renamed(session, tube, tube.name, declared))

    def forget_tube(self, tube: Tube) -> None:
        meta = self._keys.name(tube.no, "meta")
        self._vault.drop_tube(tube.no, lambda: self._servers.command(meta, b"DEL", meta))

    def tally(self, tube: Tube) -> Tally:
        return self._look(tube, partial(super().tally, tube))

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        found = self._look(tube, partial(super().read_tasks, tube, after, limit))
        return cast("list[Record]", self._data.complete(tube.no, found))

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        return self._look(tube, partial(super().read_groups, tube, after, limit))

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        return self._look(tube, partial(super().read_outcomes, tube, after, limit))

    def adopt(self, tube: Tube, parcel: Parcel) -> None:
        self._must_fit(*(record.payload for record in parcel.records))
        self._must_fit(*(kept.ending.result for kept in parcel.outcomes))
        self._step(partial(super().adopt, tube, parcel), tube)

    def land_tube(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        declared = declaration(name, tube.kind, tube.given)

        def land(epoch: int) -> None:
            self._land(tube, name, tally, totals)
            self._mirror.write(
                tube, str(epoch), whole=True, before=lambda session: self._renamed(session, tube, name, declared)
            )

        self._persist(tube, land)

    def _renamed(self, session: Session, tube: Tube, name: str, declared: bytes) -> tuple[()]:
        if not self._vault.rename(session, tube.no, name, declared):
            raise name_in_use(name)
        return ()

    def _persist(self, tube: Tube, step: Callable[[int], object]) -> None:
        """A step in one epoch, made again where the index was not whole all the while."""
        while True:
            try:
                step(self._runner.epoch)
                return
            except Interrupted:
                if not self._index.restore(tube):
                    raise self._runner.missing(tube) from None

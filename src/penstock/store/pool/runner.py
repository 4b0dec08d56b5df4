"""Scripts of a pool's index: each runs in the epoch its caller knows or does nothing, and what it changed is noted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.core.options import Tube
from penstock.errors import NoSuchTube
from penstock.store.pool.server import Interrupted, WatchedServer
from penstock.store.redis.connection import Argument, Reply
from penstock.store.redis.runner import Keys, Runner
from penstock.store.redis.scripts import Script, load_script

# How a script answers that the tube's index is of another epoch.
_OTHER_EPOCH = -3
# The places of the log in an answer, and of what a take handed out.
_LOG, _LEASED = 3, 7
# Scripts that change what the database must hear of, without a log.
_WRITERS = frozenset(
    "put put_micro_queues put_related apply recover find_group set_group_work turn_group import activate".split()
)

# The tubes that a call changed, each with the epoch it was done in, and a version that includes the changes.
Dirty = dict[int, tuple[Tube, str, float]]


class PoolRunner(Runner):
    """Runs scripts in an epoch. `restore` makes a tube's index whole; False when there is no such tube."""

    servers: WatchedServer

    def __init__(self, servers: WatchedServer, keys: Keys, clock: Callable[[], int] | None, *, modern: bool) -> None:
        super().__init__(servers, keys, clock, modern=modern)
        self.epoch = 0
        self.restore: Callable[[Tube], bool] | None = None
        self.sealed_as: Callable[[Tube], Tube | None] | None = None
        self._thread = threading.local()

    def frozen(self, tube: Tube, no: int | None = None) -> Tube | None:
        """As of every store; the vault tells, but nobody who is inside one of its transactions."""
        return None if self.sealed_as is None or self.servers.strict else self.sealed_as(tube)

    def on_tube(
        self, name: str, tube: Tube, *arguments: Argument, idempotent: bool = False, now: int | None = None
    ) -> list[Reply]:
        """As of every store; a tube whose index is lost is restored first."""
        while True:
            epoch = str(self.epoch)
            try:
                reply = self.in_epoch(epoch, name, tube, *arguments, idempotent=idempotent, now=now)
            except Interrupted:
                if self.servers.strict or self.restore is None:
                    raise
                if not self.restore(tube):
                    raise self.missing(tube) from None
                continue
            if _changed(name, tube, reply):
                self.note(tube, epoch, self.servers.version)
            return reply

    def in_epoch(
        self, epoch: str, name: str, tube: Tube, *arguments: Argument, idempotent: bool = False, now: int | None = None
    ) -> list[Reply]:
        """The same in that epoch alone; Interrupted when it is over, or the tube is not there."""
        self._thread.epoch = epoch
        try:
            reply = super().on_tube(name, tube, *arguments, idempotent=idempotent, now=now)
        except NoSuchTube as error:
            raise Interrupted from error
        if reply[0] == _OTHER_EPOCH:
            raise Interrupted
        return reply

    def begin(self) -> None:
        """From now on, requests that this thread makes itself are for the current epoch."""
        self._thread.epoch = str(self.epoch)

    def script(self, name: str, sort: str, related: bool) -> Script:
        return load_script(name, sort=sort, related=related, modern=self.modern, epoch=self._thread.epoch)

    @contextmanager
    def gathering(self) -> Iterator[Dirty]:
        """What this thread changes in here."""
        dirty: Dirty = {}
        self._thread.dirty = dirty
        try:
            yield dirty
        finally:
            self._thread.dirty = None

    def note(self, tube: Tube, epoch: str, version: float) -> None:
        """This thread changed a tube."""
        dirty = getattr(self._thread, "dirty", None)
        if dirty is not None:
            dirty[tube.no] = tube, epoch, version

    def written(self, tube: Tube) -> None:
        """The vault has what this thread changed there."""
        dirty = getattr(self._thread, "dirty", None)
        if dirty is not None:
            dirty.pop(tube.no, None)


def _changed(name: str, tube: Tube, reply: list[Reply]) -> bool:
    if name in _WRITERS or (len(reply) > _LOG and reply[_LOG]):
        return True
    return name == "take" and not tube.kind.leased and bool(reply[_LEASED])

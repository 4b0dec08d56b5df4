"""The store in a MySQL or MariaDB database: one packet per hot call, and none of penstock's rules on the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from penstock.core.entry import record_maker, stands_alone
from penstock.core.options import Tube
from penstock.core.results import Description
from penstock.core.task import Entry, Record
from penstock.engine.store import Store
from penstock.store.mysql.connection import Link
from penstock.store.mysql.location import Location, parse
from penstock.store.mysql.prepared import LONGEST, Shape
from penstock.store.mysql.queries import TIME, Q
from penstock.store.mysql.schema import migrate
from penstock.store.mysql.server import BoundServer, Refused, Server
from penstock.store.mysql.step import MysqlStep
from penstock.store.sql.waiters import Waiters

Clock = Callable[[], int]
# The server is asked for its time again when its last answer is older than this.
_CLOCK_SECONDS = 10.0
# How many differences of counters a process leaves before it folds them.
_FOLD_EVERY = 64
# A put of the default max_payload needs twice its size, and some.
_LEAST_PACKET = 4 * 1024 * 1024
# A transaction that is open for longer keeps so many removed rows that takes become slow.
_LONG_SECONDS = 300
# Between two looks at the store, and for how long after the last change; between two looks when nothing happens.
LOOK_SECONDS = 0.02
ACTIVE_SECONDS = 2.0
IDLE_SECONDS = 1.0

_PROMISES = {
    1: "a put that returned survives a power cut (innodb_flush_log_at_trx_commit=1)",
    2: "a put that returned survives the end of the server's process; a power cut may lose the last second "
    "(innodb_flush_log_at_trx_commit=2)",
    0: "a put that returned survives the end of any client; a crash of the server may lose the last second "
    "(innodb_flush_log_at_trx_commit=0)",
}


class MysqlStore(Store):
    """The store in one database of a server."""

    shared = True
    remote = True

    def __init__(self, server: Server, identity: str, clock: Clock | None, watch: Watch | None) -> None:
        super().__init__(identity)
        self.server = server
        self.clock = clock
        self.waiters = Waiters()
        self._watch = watch
        self._offset: tuple[float, float] | None = None  # the server's clock less ours, and when that was seen
        self._uncounted = 0

    def step(
        self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1, now: int | None = None
    ) -> MysqlStep:
        return MysqlStep(self, now, write=write, snapshot=not write and size > 1)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        if self.clock is not None or entry.utube is not None or not stands_alone(tube, entry):
            return None
        shape, make, run = Shape(tube, entry), record_maker(entry), self.server.run_prepared

        def put(payload: bytes) -> Record | None:
            try:
                stored = run(lambda calls: calls.put(shape, payload)) if len(payload) <= LONGEST else None
            except Refused:
                return None
            if stored is None:
                return None
            return make(*stored, payload)

        return put

    def bind(self, connection: object) -> MysqlStore:
        bound = BoundServer(self.server, connection, self.identity)
        return MysqlStore(bound, self.identity, self.clock, None)

    def describe(self) -> Description:
        return self.server.run(lambda link: _describe(link, self.server.location), safe=True)

    def now(self) -> int:
        """The server's clock, estimated from its last answer."""
        if self.clock is not None:
            return self.clock()
        if self._offset is None or time.monotonic() - self._offset[1] > _CLOCK_SECONDS:
            self.set_clock(int(self.server.send([f"SELECT {TIME}"], safe=True).results[0][0][0]))
        assert self._offset is not None
        return round((time.monotonic() + self._offset[0]) * 1000)

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if self._watch is not None:
            return self._watch.wait(wake, seconds, watch=watch)
        return super().wait(wake, seconds, watch=watch)

    def close(self) -> None:
        self.server.close()

    # what steps report

    def set_clock(self, now: int) -> int:
        """Remember the server's clock."""
        moment = time.monotonic()
        self._offset = (now / 1000 - moment, moment)
        return now

    def should_fold(self) -> bool:
        """Count one more difference. Returns whether it is time to fold them."""
        self._uncounted += 1
        return self._uncounted % _FOLD_EVERY == 0 and not self.server.bound


class Watch:
    """Waits for changes by other processes. MySQL cannot notify: `look` returns what differs after each change."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._seen: object = None
        self._looked = 0.0
        self._active_until = 0.0
        self._watching = False

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """As the contract's `wait`."""
        if watch and not self._watching:
            # A taker that begins to wait has just found the tube empty: its work may come at once.
            self._changed()
            self._active_until = time.monotonic() + ACTIVE_SECONDS
        self._watching = watch
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            pause = min(left, self._next_look() - time.monotonic()) if watch else left
            if wake.wait(max(pause, 0)):
                return False
            if watch and time.monotonic() >= self._next_look() and self._changed():
                return True
        return False

    def _next_look(self) -> float:
        return self._looked + (LOOK_SECONDS if self._looked < self._active_until else IDLE_SECONDS)

    def _changed(self) -> bool:
        seen = self._look()
        self._looked = time.monotonic()
        if seen == self._seen:
            return False
        self._seen = seen
        self._active_until = self._looked + ACTIVE_SECONDS
        return True


def _describe(link: Link, location: Location) -> Description:
    """What the store promises by the server's real settings, and what should be done about them."""
    version, flush, log_bin, sync_binlog, connections = link.rows(Q.settings)[0]
    advice = []
    if log_bin and sync_binlog != 1:
        advice.append("sync_binlog is not 1: after a power cut replicas may differ from this server; set it to 1")
    if location.pool_size >= connections:
        advice.append(f"pool_size is {location.pool_size}, max_connections {connections}: lower one or raise the other")
    if link.max_packet < _LEAST_PACKET:
        advice.append(f"max_allowed_packet is {link.max_packet}: raise it to {_LEAST_PACKET} or more, for large tasks")
    grants = " ".join(grant for (grant,) in link.rows("SHOW GRANTS"))
    if "PROCESS" in grants or "ALL PRIVILEGES ON *.*" in grants:  # else this user may not know
        oldest = int(link.rows(Q.oldest_transaction)[0][0] or 0)
        if oldest > _LONG_SECONDS:
            advice.append(f"a transaction is open for {oldest} s and keeps removed rows from being purged: end it")
    name = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    schema = int(dict(link.rows(Q.all_meta))["schema"])
    return Description(name, version, location.name, promise(flush), schema, advice)


def promise(flush: object) -> str:
    """What innodb_flush_log_at_trx_commit means for a put that returned."""
    return _PROMISES.get(int(str(flush)), _PROMISES[1])  # 3 of MariaDB is 1 with one flush more


def open_mysql(url: str, clock: Clock | None = None) -> Store:
    """The store of a mysql:// URL, created if the database is empty."""
    server = Server(parse(url))
    try:
        identity = f"mysql:{migrate(server)}"
        watch = Watch(lambda: server.send([Q.watch], safe=True).results)
        store = MysqlStore(server, identity, clock, watch)
        store.finish_drops()
    except BaseException:
        server.close()
        raise
    return store

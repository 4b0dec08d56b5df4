"""The store in a MySQL or MariaDB database: one packet a step, and nothing of penstock's rules on the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from penstock.core.entry import stands_alone
from penstock.core.options import Tube
from penstock.core.results import Description
from penstock.core.task import Entry, Record
from penstock.engine.store import EngineStore
from penstock.store.mysql.bound import BoundServer
from penstock.store.mysql.describe import describe
from penstock.store.mysql.location import parse
from penstock.store.mysql.puts import make_plain_put
from penstock.store.mysql.queries import Q
from penstock.store.mysql.schema import migrate
from penstock.store.mysql.server import Refused, Server
from penstock.store.mysql.step import MysqlStep
from penstock.store.mysql.taking import LostTake
from penstock.store.mysql.watch import Watch
from penstock.store.sql.waiters import Waiters

Clock = Callable[[], int]
# The server's clock is asked again when the last answer that told it is older than this.
_CLOCK_SECONDS = 10.0
# So many differences of counters are left before somebody folds them.
_FOLD_EVERY = 64


class MysqlDatabase:
    """Keeps `engine.port.Database` in one database of a server."""

    shared = True
    remote = True

    def __init__(self, server: Server, identity: str, clock: Clock | None, watch: Watch | None) -> None:
        self.server = server
        self.identity = identity
        self.clock = clock
        self.waiters = Waiters()
        self.lost: list[LostTake] = []
        #: Tubes of which tasks with addresses, or in groups, were seen: their acks and loads ask for more at once.
        self.addressed: set[int] = set()
        self.grouped: set[int] = set()
        self._watch = watch
        self._offset: tuple[float, float] | None = None  # the server's clock less ours, and when that was seen
        self._uncounted = 0

    def step(
        self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1, now: int | None = None
    ) -> MysqlStep:
        return MysqlStep(self, now, write=write, snapshot=not write and size > 1)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        if self.clock is not None or not stands_alone(tube, entry):
            return None
        plain, ttl = make_plain_put(tube, entry), entry.ttl

        def put(payload: bytes) -> Record | None:
            try:
                id, moment = plain.run(self.server, payload)
            except Refused:
                return None
            expires = None if ttl is None else moment + ttl
            return Record(
                id, "r", entry.rank1.base, entry.rank2.base, entry.pri, entry.utube, 0, 0, moment, None, expires,
                expires, entry.ttr, entry.max_attempts, None, None, entry.callback, payload,
            )  # fmt: skip

        return put

    def bind(self, connection: object) -> MysqlDatabase:
        bound = BoundServer(self.server, connection, self.identity)
        database = MysqlDatabase(bound, self.identity, self.clock, None)
        database.addressed, database.grouped = self.addressed, self.grouped
        return database

    def describe(self) -> Description:
        return self.server.run(lambda link: describe(link, self.server.location), safe=True)

    def now(self) -> int:
        """The server's clock is reckoned from what it last said, without asking it each time."""
        if self.clock is not None:
            return self.clock()
        if self._offset is None or time.monotonic() - self._offset[1] > _CLOCK_SECONDS:
            self.heard(int(self.server.send([Q.time], safe=True).results[0][0][0]))
        assert self._offset is not None
        return round((time.monotonic() + self._offset[0]) * 1000)

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if self._watch is not None:
            return self._watch.wait(wake, seconds, watch=watch)
        wake.wait(seconds)
        return False

    def close(self) -> None:
        self.server.close()

    # what steps tell

    def heard(self, now: int) -> int:
        """An answer told the server's clock."""
        moment = time.monotonic()
        self._offset = (now / 1000 - moment, moment)
        return now

    def know(self, tube: Tube, records: Iterable[Record]) -> None:
        """Tasks of a tube were seen."""
        if tube.no in self.addressed and tube.no in self.grouped:
            return
        for record in records:
            if record.address is not None:
                self.addressed.add(tube.no)
            if record.group_no is not None:
                self.grouped.add(tube.no)

    def should_fold(self) -> bool:
        """One more difference was left; whether it is time to fold them."""
        self._uncounted += 1
        return self._uncounted % _FOLD_EVERY == 0 and not self.server.bound


def open_mysql(url: str, clock: Clock | None = None) -> EngineStore:
    """The store of a mysql:// URL, created where the database is empty."""
    server = Server(parse(url))
    try:
        identity = f"mysql:{migrate(server)}"
        watch = Watch(lambda: server.send([Q.watch], safe=True).results)
        store = EngineStore(MysqlDatabase(server, identity, clock, watch))
        store.finish_drops()
    except BaseException:
        server.close()
        raise
    return store

"""A hot standby is promoted after its primary died. Run separately: `pytest tests/matrix/standby.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

import penstock
from tests.servers import started
from tests.servers.postgres import DurablePostgres
from tests.support.threads import begin, until


class Primary(DurablePostgres):
    """A primary whose commits wait until the standby has applied them."""

    def follow(self, standby: Standby) -> None:
        """Make commits wait for this standby from now on."""
        with closing(psycopg.connect(self.url, autocommit=True)) as db:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            db.execute("ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
            db.execute("SELECT pg_reload_conf()")
            until(lambda: db.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchall() != [])


class Standby(DurablePostgres):
    """A standby that starts with a copy of the primary's data, made while the primary is stopped."""

    def __init__(self, primary: Primary) -> None:
        self._primary = primary
        super().__init__()

    def prepare(self) -> None:
        self._primary.kill()
        data = self.folder / "data"
        self.run("cp", "--archive", str(self._primary.folder / "data"), str(data))
        (data / "postmaster.pid").unlink(missing_ok=True)
        self.run("touch", str(data / "standby.signal"))
        self._primary.start()

    def command(self) -> list[str]:
        source = f"host=127.0.0.1 port={self._primary.port} user=penstock"
        return [*super().command(), "-c", f"primary_conninfo={source}"]

    def promote(self) -> None:
        """Make it a primary."""
        with closing(psycopg.connect(self.url, autocommit=True)) as db:
            db.execute("SELECT pg_promote()")


@pytest.fixture
def primary() -> Iterator[Primary]:
    with started(Primary) as server:
        yield server


@pytest.fixture
def standby(primary: Primary) -> Iterator[Standby]:
    with started(lambda: Standby(primary)) as server:
        primary.follow(server)
        yield server


def test_work_continues_on_a_promoted_standby(primary: Primary, standby: Standby) -> None:
    """One URL names both servers; puts, takes and acks on the first are visible on the second."""
    url = f"postgresql://penstock@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    with penstock.connect(f"{url}?target_session_attrs=read-write") as broker:
        tube = broker.tube("work", ttr=60)
        tasks = tube.put_many(range(100))
        done, held = tube.take_many(10), tube.take_many(5)
        assert all(tube.ack_many(done))
        empty = broker.tube("empty")
        waiting = begin(lambda: empty.take(60))
        until(lambda: any(session.waits for session in broker.sessions()))

        with pytest.raises(penstock.StoreUnavailable, match="connect to the primary"):
            penstock.connect(standby.url).tube("other")
        primary.kill()
        with pytest.raises((penstock.StoreUnavailable, penstock.OutcomeUnknown)):
            tube.put("while no server writes")
        standby.promote()

        put = empty.put("after")
        woken = waiting.result(60)
        assert woken is not None
        assert woken.id == put.id
        woken.ack()
        assert all(tube.ack_many(held))
        left = [task.id for task in tube.take_many(100)]
        assert left == [task.id for task in tasks[15:]]
        assert tube.put("next").id > tasks[-1].id
        assert broker.check() == []

"""While a transaction is held open, takes skip the rows of earlier tasks, and never a ready one."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

import psycopg
import pytest

import penstock
from penstock.store.postgres.postgres_connection import locate
from penstock.testing import Clock
from tests.postgres.plans import PlanLogger, buffers
from tests.postgres.schemas import damage
from tests.postgres.search_bounds import Low, passed_by
from tests.postgres.search_bounds import eager as eager
from tests.postgres.search_bounds import low as low
from tests.support.threads import begin
from tests.support.verbs import take

# A take reads some pages of each index; skipping thousands of entries reads thousands.
FEW_PAGES = 200
PUTS = 100


@pytest.fixture
def held(url: str) -> Iterator[None]:
    """A transaction that stays open during the block, with a snapshot of everything when it began."""
    with psycopg.connect(locate(url).conninfo) as db:
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute("SELECT count(*) FROM pg_class")
        yield


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(("kind", "ttr"), [("fifo", None), ("fifottl", None), ("fifottl", 60)])
def test_takes_skip_taken_rows(url: str, broker: penstock.Broker, held: None, kind: str, ttr: float | None) -> None:
    tube = broker.tube("work", kind, ttr=ttr)
    tube.put_many(range(10_200))
    plan_logger = PlanLogger(url, broker)
    for _ in range(50):
        tube.ack_many(tube.take_many(200))
    touched = []
    for _ in range(200):
        with plan_logger.listening() as plans:
            task = take(tube)
        touched.append(max(buffers(plan) for plan in plans))
        task.ack()
        if touched[-1] < FEW_PAGES:
            break
    plan_logger.db.close()
    assert touched[-1] < FEW_PAGES, touched


def back_by_session(broker: penstock.Broker, tube: penstock.Tube, old: penstock.Task) -> None:
    old.release()
    with broker.session() as session:
        assert take(session.tube(tube.name)).id == old.id


def bury_and_kick(broker: penstock.Broker, tube: penstock.Tube, old: penstock.Task) -> None:
    old.bury()
    assert tube.kick(1) == 1


def delayed(broker: penstock.Broker, tube: penstock.Tube, old: penstock.Task) -> None:
    old.release(0.001)
    tube.tasks("~")
    while tube.peek(old.id).status == "~":
        tube.stats()


RETURNS: dict[str, Callable[[penstock.Broker, penstock.Tube, penstock.Task], None]] = {
    "release": lambda broker, tube, old: old.release(),
    "release_all": lambda broker, tube, old: None if tube.release_all() else pytest.fail("nothing was taken"),
    "kick": bury_and_kick,
    "delay": delayed,
    "end of a session": back_by_session,
}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("way", RETURNS)
def test_an_old_task_that_returns_is_the_next(url: str, broker: penstock.Broker, low: Low, way: str) -> None:
    tube = broker.tube("work", ttr=1000)
    old = passed_by(tube, low)
    RETURNS[way](broker, tube, old)
    assert low(tube) <= old.id
    assert [task.id for task in tube.take_many(3)] == [old.id, 22, 23]


@pytest.mark.usefixtures("eager")
def test_a_new_task_of_an_address_is_the_next(url: str, broker: penstock.Broker, low: Low) -> None:
    tube = broker.tube("work")
    tube.put("later", address="a", delay=1000)
    tube.put_many(range(30))
    for _ in range(20):
        take(tube).ack()
    assert low(tube) > 1
    tube.put("now", address="a", on_duplicate="replace")
    assert [task.data for task in tube.take_many(2)] == ["now", 20]


@pytest.mark.usefixtures("eager")
def test_more_urgent_tasks_come_first(url: str, broker: penstock.Broker, low: Low) -> None:
    tube = broker.tube("work", pri=5)
    tube.put_many(range(30))
    later = tube.put("later", pri=9)
    for _ in range(20):
        take(tube).ack()
    assert 1 < low(tube) <= 21
    tube.put("urgent", pri=0)
    assert [task.data for task in tube.take_many(3)] == ["urgent", 20, 21]
    tube.ack_many(tube.take_many(8))
    assert take(tube).id == later.id


@pytest.mark.usefixtures("eager")
def test_a_take_that_is_rolled_back_leaves_its_task_visible(url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("work", "fifo")
    tube.put_many(range(30))
    for _ in range(20):
        take(tube).ack()
    # An error at the end of the take: its changes are rolled back, but the raised bounds are not.
    damage(url, "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no'; END$$")
    damage(url, "CREATE TRIGGER no BEFORE INSERT ON penstock_delta FOR EACH ROW EXECUTE FUNCTION no()")
    with pytest.raises(penstock.StoreError):
        tube.take(0)
    damage(url, "DROP TRIGGER no ON penstock_delta")
    assert take(tube).data == 20


@pytest.mark.usefixtures("eager")
def test_a_put_in_flight_delays_it(url: str, broker: penstock.Broker, low: Low) -> None:
    tube = broker.tube("work", "fifo")
    tube.put("first")
    with psycopg.connect(locate(url).conninfo) as db:
        hidden = broker.bind(db).tube("work").put("hidden")
        tube.put_many(range(30))
        for _ in range(20):
            take(tube).ack()
        assert low(tube) <= hidden.id
    assert take(tube).data == "hidden"


@pytest.mark.usefixtures("eager")
def test_nothing_is_lost_among_many(url: str, broker: penstock.Broker) -> None:
    """Threads put, take, release and ack while every take raises the bounds: each task is acked once."""
    tube = broker.tube("work")
    acked: list[int] = []
    stored = threading.Event()

    def put(seed: int) -> None:
        dice = random.Random(seed)
        for number in range(PUTS):
            tube.put(number, pri=dice.randrange(3))

    def work(seed: int) -> None:
        dice = random.Random(seed)
        while not stored.is_set() or tube.stats().tasks.total:
            task = tube.take(0)
            if task is None:
                tube.kick(PUTS)
            elif (what := dice.randrange(4)) == 0:
                task.release()
            elif what == 1:
                task.bury()
            else:
                task.ack()
                acked.append(task.id)

    workers = [begin(partial(work, seed)) for seed in range(3)]
    for putter in [begin(partial(put, seed)) for seed in range(2)]:
        putter.result(60)
    stored.set()
    for worker in workers:
        worker.result(60)
    assert sorted(acked) == list(range(1, 2 * PUTS + 1))
    assert broker.check() == []


def delay(tube: penstock.Tube) -> Callable[[], bool]:
    tube.put("x", delay=5)
    return lambda: take(tube).data == "x"


def delay_of_one_of_many(tube: penstock.Tube) -> Callable[[], bool]:
    tube.put_many([("x", {"delay": 500}), ("y", {"delay": 5})])
    return lambda: take(tube).data == "y"


def delay_of_all(tube: penstock.Tube) -> Callable[[], bool]:
    tube.put_many(["x", "y"], delay=5)
    return lambda: take(tube).data == "x"


def ttr(tube: penstock.Tube) -> Callable[[], bool]:
    tube.put("x", ttr=5)
    assert take(tube).data == "x"
    return lambda: take(tube).attempts == 2


def release(tube: penstock.Tube) -> Callable[[], bool]:
    tube.put("x")
    take(tube).release(5)
    return lambda: take(tube).attempts == 2


def replace(tube: penstock.Tube) -> Callable[[], bool]:
    tube.put("x", address="a", delay=500)
    tube.put("y", address="a", delay=5, on_duplicate="replace")
    return lambda: take(tube).data == "y"


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("way", [delay, delay_of_one_of_many, delay_of_all, ttr, release, replace])
def test_a_deadline_before_all_others_is_kept(
    url: str, way: Callable[[penstock.Tube], Callable[[], bool]], clock: Clock, low: Low
) -> None:
    with penstock.connect(url, clock=clock) as broker:
        tube = broker.tube("work", ttr=1000)
        tube.put_many(range(20))
        for _ in range(20):
            take(tube).ack()
        assert low(tube, "dues") > clock() + 900_000
        kept = way(tube)
        clock.advance(4.999)
        assert tube.take(0) is None
        clock.advance(0.001)
        assert kept()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("options", [{}, {"ttl": 5}])
def test_a_ttl_that_ends_before_all_others(url: str, clock: Clock, low: Low, options: dict[str, float]) -> None:
    with penstock.connect(url, clock=clock) as broker:
        tube = broker.tube("work", ttl=5, ttr=1000)
        tube.put_many(range(20), ttl=3000)
        for _ in range(20):
            take(tube).ack()
        assert low(tube, "dues") > clock() + 900_000
        tube.put("x", **options)  # type: ignore[arg-type]
        clock.advance(5)
        assert tube.take(0) is None
        assert tube.stats().calls.ttl == 1


@pytest.mark.usefixtures("eager")
def test_a_repair_looks_at_everything(url: str, broker: penstock.Broker, low: Low) -> None:
    tube = broker.tube("work", "fifo")
    old = passed_by(tube, low)
    damage(url, f"UPDATE penstock_task SET state = 'x' WHERE pk & 1099511627775 = {old.id}")
    assert broker.check(repair=True) != []
    assert take(tube).id == old.id

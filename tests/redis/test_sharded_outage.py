"""A cluster node fails during a call on several shards: each shard applies its whole part, or nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pytest

import penstock
from penstock.core.shards import shard_of
from penstock.store.redis.redis_store import RedisStore
from tests.servers.redis import Redis, RedisCluster
from tests.support.inspection import waiters
from tests.support.threads import begin, until

SHARDS = 8
UTUBES = [f"u{n}" for n in range(24)]  # a few in each shard
AWAY = (penstock.StoreUnavailable, penstock.OutcomeUnknown)
Data = tuple[str, int]


@pytest.fixture
def node(cluster: RedisCluster) -> Iterator[Redis]:
    """A node that keeps every write it answered."""
    node = cluster.others[0]
    default, node.appendfsync = node.appendfsync, "always"  # when it is started again
    node.ask("CONFIG", "SET", "appendfsync", "always")
    yield node
    node.appendfsync = default
    node.ask("CONFIG", "SET", "appendfsync", default)


def put(tube: penstock.Tube, number: int) -> None:
    """Put a batch that reaches every shard."""
    tube.put_many([([utube, number], {"utube": utube}) for utube in UTUBES])


def is_on(node: Redis, tube: penstock.Tube) -> bool:
    store = tube.runtime.store
    assert isinstance(store, RedisStore)
    return "MOVED" not in node.ask("EXISTS", store._keys.name(tube.stored.no, "meta").decode())


def shards(utubes: Iterable[str]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for utube in utubes:
        found.setdefault(shard_of(utube, SHARDS), set()).add(utube)
    return found


def whole_shards(utubes: Iterable[str]) -> bool:
    """Whether each shard has its whole part of a batch, or nothing."""
    whole = shards(UTUBES)
    return all(part == whole[shard] for shard, part in shards(utubes).items())


def held(tube: penstock.Tube, status: str) -> set[str]:
    return {str(task.utube) for task in tube.tasks(status, limit=1000)}


@pytest.fixture
def broker(cluster: RedisCluster, node: Redis) -> Iterator[penstock.Broker]:
    with penstock.connect(cluster.fresh_url()) as broker:
        yield broker
        assert broker.check() == []


def test_the_error_of_a_lost_node_says_whether_other_nodes_applied_the_call(
    broker: penstock.Broker, cluster: RedisCluster, node: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """StoreUnavailable if nothing was applied, OutcomeUnknown if some was; a retry applies the rest."""
    monkeypatch.setattr("penstock.store.redis.servers.TRIES", 2)
    verbs = ("put_many", "ack_many", "kick", "release_all", "truncate")
    tubes = {verb: broker.tube(verb, kind="utube", shards=SHARDS) for verb in verbs}
    for tube in [tubes[verb] for verb in verbs[1:]]:
        put(tube, 0)
    tasks = {verb: tubes[verb].take_many(len(UTUBES)) for verb in ("ack_many", "kick", "release_all")}
    for task in tasks["kick"]:
        task.bury()
    calls: dict[str, Callable[[], object]] = {
        "put_many": lambda: put(tubes["put_many"], 0),
        "ack_many": lambda: len(list(filter(None, tubes["ack_many"].ack_many(tasks["ack_many"])))),
        "kick": lambda: tubes["kick"].kick(len(UTUBES)),
        "release_all": tubes["release_all"].release_all,
        "truncate": tubes["truncate"].truncate,
    }
    raised = {}
    node.kill()
    for verb, call in calls.items():
        with pytest.raises(AWAY) as caught:
            call()
        raised[verb] = caught.type
    node.start()
    cluster.await_answer()
    changed = {
        "put_many": held(tubes["put_many"], "r"),
        "ack_many": set(UTUBES) - held(tubes["ack_many"], "t"),
        "kick": held(tubes["kick"], "r"),
        "release_all": held(tubes["release_all"], "r"),
        "truncate": set(UTUBES) - held(tubes["truncate"], "r"),
    }
    for verb, done in changed.items():
        assert whole_shards(done), verb
        assert len(done) < len(UTUBES), verb
        assert (raised[verb] is penstock.OutcomeUnknown) == bool(done), verb
    for verb in verbs[1:]:
        assert calls[verb]() == len(UTUBES) - len(changed[verb]), verb
    assert penstock.OutcomeUnknown in raised.values()


def test_what_a_waiting_take_got_is_the_callers_when_another_node_is_lost(
    broker: penstock.Broker,
    cluster: RedisCluster,
    node: Redis,
    asleep: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The taker cannot be removed from the waiters there, and no session may hold a task that nobody knows of."""
    tubes = [broker.tube(f"t{n}", kind="fifo") for n in range(8)]
    here, there = (next(tube for tube in tubes if is_on(node, tube) == lost) for lost in (False, True))
    waiting = begin(lambda: broker.take([here.name, there.name], 120))
    assert asleep.wait(30)
    assert waiters(broker, there.name) == 1
    node.kill()
    here.put("x")
    until(lambda: waiting.done() or "blocked calls resume when it returns" in caplog.text)
    node.start()
    cluster.await_answer()
    task = waiting.result(timeout=120)
    assert task is not None
    assert task.data == "x"
    task.ack()


def test_batches_continue_while_nodes_are_killed(broker: penstock.Broker, cluster: RedisCluster, node: Redis) -> None:
    """Nothing acknowledged is lost, nothing is acked twice, and every shard has a batch whole or not at all."""
    tube = broker.tube("t", kind="utube", shards=SHARDS)
    load = Batches(tube)
    for wanted in (3, 6):
        load.reach(wanted)
        node.kill()
        node.start()
        cluster.await_answer()
    load.reach(9)
    load.stop()
    left = {_data(task) for task in tube.tasks(limit=10_000)}
    assert len(left) == len(tube)
    known = {(utube, number) for number in load.stored for utube in UTUBES}
    assert max(load.acked.values()) == 1
    assert known <= left | load.acked.keys() | load.perhaps_acked
    assert not left & load.acked.keys()
    for number in load.unknown:
        there = {utube for utube, of in left | load.acked.keys() | load.perhaps_acked if of == number}
        assert whole_shards(there), number


class Batches:
    """A thread that puts batches into all shards, takes and acks them, and records the answers."""

    def __init__(self, tube: penstock.Tube) -> None:
        self.tube = tube
        self.stored: list[int] = []
        self.unknown: list[int] = []
        self.acked = Counter[Data]()
        self.perhaps_acked: set[Data] = set()
        self._changed = threading.Condition()
        self._over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def reach(self, batches: int) -> None:
        """Wait until that many are stored."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._error or len(self.stored) >= batches, 120)
        assert self._error is None

    def stop(self) -> None:
        self._over = True
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert self._error is None

    def _run(self) -> None:
        try:
            for number in count():
                if self._over:
                    return
                self._put(number)
                self._ack()
        except BaseException as error:
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _put(self, number: int) -> None:
        try:
            put(self.tube, number)
        except penstock.OutcomeUnknown:
            self.unknown.append(number)
        except penstock.StoreUnavailable:
            return
        else:
            with self._changed:
                self.stored.append(number)
                self._changed.notify_all()

    def _ack(self) -> None:
        tasks: list[penstock.Task] = []
        try:
            tasks = self.tube.take_many(len(UTUBES) - 3)
            good = self.tube.ack_many(tasks)
        except penstock.OutcomeUnknown:
            self.perhaps_acked |= {_data(task) for task in tasks}
        except penstock.StoreUnavailable:
            return
        else:
            self.acked.update(_data(task) for task, done in zip(tasks, good, strict=True) if done)


def _data(task: penstock.Task) -> Data:
    assert isinstance(task.data, list)
    return task.data[0], task.data[1]

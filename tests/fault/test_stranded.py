"""A take whose answer is lost leaves no task leased (SPEC 11), on any server, although its session is alive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock.core.store_url import with_pool
from penstock.runtime import heartbeat
from tests.servers import running
from tests.servers.proxy import Proxy, proxied

STORES = ("postgres", "mariadb", "redis", "redis-cluster", "pool-sqlite")


@pytest.fixture(scope="module", params=STORES)
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with proxied(running(_server(request.param))) as proxy:
        yield proxy


@pytest.fixture
def urls(request: pytest.FixtureRequest, proxy: Proxy, tmp_path: Path) -> tuple[str, str]:
    """The URLs of a store through the proxy and without it."""
    name = request.node.callspec.params["proxy"]
    server = running(_server(name))
    direct = server.fresh_url()
    if name.startswith("pool"):
        direct = with_pool(direct, f"sqlite:///{tmp_path}/pool.db?durability=relaxed")
    return direct.replace(str(server.port), str(proxy.port), 1), direct


def _server(store: str) -> str:
    return "redis" if store.startswith("pool") else store


def joined_tube(broker: penstock.Broker, kind: str = "fifo") -> penstock.Tube:
    """A tube whose next take makes no other call first."""
    tube = broker.tube("t", kind)
    assert tube.take_many(1) == []
    return tube


@pytest.fixture
def no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the heartbeats off."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 600.0)


@pytest.fixture
def early_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make heartbeats frequent. Without this they come every few seconds."""
    assert heartbeat.BEAT_SECONDS <= 5
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.5)


@pytest.fixture
def broker(urls: tuple[str, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[penstock.Broker]:
    proxy.lose_answers = False  # whatever happened in the test before
    # While answers are lost, so are new connections: no call waits for one as long as for a server that restarts.
    monkeypatch.setattr("penstock.store.sql.server.WAIT_SECONDS", 0.5)
    with penstock.connect(urls[0]) as broker:
        yield broker
        assert broker.check() == []


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_tasks_of_a_lost_take_are_handed_out_again(broker: penstock.Broker, proxy: Proxy, kind: str) -> None:
    tube = joined_tube(broker, kind)
    before = tube.stats().calls
    tube.put_many(range(3) if kind == "fifo" else [0], max_attempts=1)
    count = tube.stats().tasks.ready
    proxy.losses = 1
    tasks: list[penstock.Task] = []
    with suppress(penstock.OutcomeUnknown):  # some stores retry it
        tasks = tube.take_many(3)
    tasks = tasks or tube.take_many(3)
    assert [(task.attempts, task.lease) for task in tasks] == [(1, 2)] * count
    after = tube.stats().calls
    assert (after.take - before.take, after.release - before.release) == (count, 0)
    assert tube.ack_many(tasks) == [True] * count


@pytest.mark.usefixtures("no_heartbeat")
def test_a_heartbeat_releases_a_stranded_task(broker: penstock.Broker, proxy: Proxy, urls: tuple[str, str]) -> None:
    """The taker never takes again: another one gets the task, and the taker's session stays alive."""
    tube = joined_tube(broker)
    tube.put("a")
    proxy.lose_answers = True
    with pytest.raises(penstock.StoreError):
        tube.take(0)
    proxy.lose_answers = False
    [id] = [task.id for task in tube.tasks()]
    assert "answer was lost" in tube.why(id)
    assert [(found.tube, found.id) for found in broker.check() if "answer was lost" in found.what] == [(tube.name, id)]
    with penstock.connect(urls[1]) as other:
        assert other.tube(tube.name).take(0) is None
        broker.runtime.send_heartbeats()
        task = other.tube(tube.name).take(0)
        assert task is not None
        assert (task.data, task.attempts) == ("a", 1)
        assert len(broker.sessions()) == 2
        task.ack()


@pytest.mark.usefixtures("no_heartbeat")
def test_repair_releases_a_stranded_task(broker: penstock.Broker, proxy: Proxy) -> None:
    tube = joined_tube(broker)
    tube.put("a")
    proxy.lose_answers = True
    with pytest.raises(penstock.StoreError):
        tube.take(0)
    proxy.lose_answers = False
    assert len(broker.check(repair=True)) == 1
    assert broker.check() == []
    assert tube.stats().tasks.ready == 1


@pytest.mark.usefixtures("early_heartbeat")
def test_a_stranded_task_is_released_within_seconds(
    broker: penstock.Broker, proxy: Proxy, urls: tuple[str, str]
) -> None:
    """The background thread does it at its next heartbeat; the test only waits."""
    tube = joined_tube(broker)
    tube.put("a")
    proxy.lose_answers = True
    with pytest.raises(penstock.StoreError):
        tube.take(0)
    proxy.lose_answers = False
    with penstock.connect(urls[1]) as other:
        task = other.tube(tube.name).take(60)
        assert task is not None
        task.ack()

"""The fast path of a put without options stores what the general path stores."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.core import kind as known
from penstock.core.task import record_of
from penstock.store.redis.redis_store import RedisStore
from penstock.testing import Clock
from tests.servers.redis import Redis

RANKED = penstock.Kind("ranked-pri", accepts={"pri", "ttl"}, order=("rank", "pri"))
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("fifo", {}),
    ("fifo", {"max_attempts": 7, "callback": "https://example.org/done"}),
    ("fifottl", {}),
    ("fifottl", {"pri": 3, "ttl": 5, "ttr": 2}),
    ("fifottl", {"ttl": 5, "max_attempts": 2}),
    (RANKED.name, {"pri": 9}),
]


@pytest.fixture(autouse=True)
def _ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_kinds", dict(known._kinds))
    penstock.register_kind(RANKED)


def stored(store: RedisStore, tube: penstock.Tube) -> list[object]:
    """The tasks of a tube and its index entries."""
    commands = {"tasks": ("HGETALL",), "ready": ("ZRANGE", 0, -1, "WITHSCORES"), "due": ("ZRANGE", 0, -1, "WITHSCORES")}
    keys = {part: store._keys.name(tube.stored.no, part) for part in commands}
    return [store._servers.command(keys[part], word, keys[part], *words) for part, (word, *words) in commands.items()]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_it_stores_the_same_bytes(server: Redis, kind: str, options: dict[str, Any]) -> None:
    with penstock.connect(server.fresh_url(), clock=Clock()) as broker:
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        short, long = broker.tube("short", kind=kind, **options), broker.tube("long", kind=kind, **options)
        assert short._plain is not None
        answers = [short.put(b"data"), long.put_many([b"data"])[0]]
        assert record_of(answers[0]) == record_of(answers[1]) == record_of(short.peek(1))
        assert stored(store, short) == stored(store, long)
        assert short.stats() == long.stats()
        assert broker.check() == []


@pytest.mark.parametrize(
    ("kind", "options"),
    [("utube", {}), ("reliable", {}), ("fifo", {"capacity": 9}), ("fifottl", {"aging": 5}), ("utube", {"shards": 2})],
)
def test_no_fast_path_if_more_must_be_decided(broker: penstock.Broker, kind: str, options: dict[str, Any]) -> None:
    tube = broker.tube("t", kind=kind, **options)
    assert tube._plain is None
    tube.put("x")
    assert len(tube) == 1


def test_each_shard_has_its_own_fast_path(broker: penstock.Broker) -> None:
    tube = broker.tube("t", ttl=60, shards=3)
    reported: list[int] = []
    tube.on_change(lambda task, event: reported.append(task.id))
    assert tube._plain is not None
    ids = [tube.put(n).id for n in range(6)]
    assert sorted(ids) == [1, 2, 3, 4, 5, 6]
    assert reported == ids
    assert sorted(task.id for task in tube.take_many(9)) == [1, 2, 3, 4, 5, 6]

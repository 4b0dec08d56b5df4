"""Python encodes tasks as the scripts do, so that repair may write them."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.lifecycle import Move
from penstock.core.task import record_of
from penstock.operations.store_ops import settle
from penstock.store.redis.encoding import decode, encode, task_id
from penstock.store.redis.redis_store import RedisStore
from tests.support.verbs import take


def must_be_the_same(broker: penstock.Broker, tube: penstock.Tube) -> set[bytes]:
    """Encode every stored task again and compare. Returns their states."""
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    stored = dict(store._runner.scan(tube.stored, "tasks"))
    for key, value in stored.items():
        assert encode(decode(task_id(key), value)) == value
    return {value[:1] for value in stored.values()}


@pytest.mark.parametrize("fair", [False, True])
def test_tasks_in_every_state_are_encoded_as_scripts_do(broker: penstock.Broker, fair: bool) -> None:
    tube = broker.tube("t", kind="utubettl", fair=fair, max_attempts=9, callback="http://127.0.0.1/x")
    tube.put_many([(n, {"utube": "ü" * (1 + n % 5), "pri": n // 3, "ttl": 60 + n, "ttr": 30}) for n in range(12)])
    group = tube.group("grüppe")
    group.put("held back", address="ä", reply_to="replies", delay=5)
    task, other = take(tube), take(tube)
    move = Move("touch", task.id, record_of(task).owner, record_of(task).lease, 0, progress=0.25)
    assert settle(tube.runtime, tube.stored, [move])[0] is not None
    other.bury("ö" * 500)
    take(tube).release(delay=9)
    take(tube)
    assert must_be_the_same(broker, tube) == {b"r", b"q", b"t", b"~", b"g", b"!"}


@pytest.mark.parametrize("kind", ["round", "reliable"])
def test_tasks_of_kinds_without_leases_are_encoded_as_scripts_do(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, **({"period": 5} if kind == "round" else {}))  # type: ignore[arg-type]
    tube.put_many([(n, {"id": f"n{n}"} if kind == "round" else {}) for n in range(4)])
    assert len(tube.take_many(2)) == 2
    must_be_the_same(broker, tube)

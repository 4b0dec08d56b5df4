"""kill -9 at every step between Redis and the database: nothing is lost, stranded or doubled, even if Redis is lost.

With SQLite at every third step, with database servers at every fifth; with PENSTOCK_STEPS=all at each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count

import pytest

import penstock
from penstock.core.entry import plain_entry
from penstock.store.pool.pool_store import PoolStore
from penstock.store.redis.redis_store import RedisStore
from tests.pool.conftest import Connect
from tests.pool.killed_process import Report, Scenario, die_at
from tests.servers.redis import Redis
from tests.support.verbs import take

Contents = list[tuple[object, str]]
ALL = os.environ.get("PENSTOCK_STEPS") == "all"


def run_plain_tasks(broker: penstock.Broker, report: Report) -> None:
    tube = broker.tube("t")
    report("begun")
    tube.put_many(["a", "b"])
    report("put")
    task = take(tube)
    report("taken")
    task.ack()
    report("acked")
    take(tube).release(delay=60)
    report("delayed")
    tube.bury(2, "why")
    report("buried")
    tube.kick(1)
    report("kicked")
    tube.delete(2)
    report("deleted")


# the last report -> what is stored: data and status; tasks of a dead process are ready
PLAIN: dict[str, Contents] = {
    "": [],
    "begun": [],
    "put": [("a", "r"), ("b", "r")],
    "taken": [("a", "r"), ("b", "r")],
    "acked": [("b", "r")],
    "delayed": [("b", "~")],
    "buried": [("b", "!")],
    "kicked": [("b", "r")],
    "deleted": [],
}


def run_relations(broker: penstock.Broker, report: Report) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    group.on_end("end")
    report("begun")
    group.put("member", address="a", reply_to="t")
    report("put")
    group.start()
    report("started")
    take(tube).ack("fine")
    report("acked")


REPLY = {"id": 1, "address": "a", "status": "done", "result": "fine"}
RELATIONS: dict[str, Contents] = {
    "": [],
    "begun": [],
    "put": [("member", "~")],
    "started": [("member", "r")],
    "acked": [(REPLY, "r"), ("end", "r")],
}


# Whether Redis is lost with the process, by the number of the step. A verb usually has four steps: by threes, and at
# every fifth step too, so that each comes with a loss and without.
LOSSES: dict[str, Callable[[int], bool]] = {
    "kept": lambda step: False, "lost": lambda step: True, "by threes": lambda step: step % 3 == 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("databases", "losses"),
    [("sqlite", "kept"), ("sqlite", "lost"), ("postgres", "by threes"), ("mariadb", "by threes")],
    indirect=["databases"],
)
@pytest.mark.parametrize(("scenario", "states"), [(run_plain_tasks, PLAIN), (run_relations, RELATIONS)])
def test_a_process_that_dies_at_any_step_loses_nothing(
    server: Redis, databases: Callable[[], str], losses: str, scenario: Scenario, states: dict[str, Contents]
) -> None:
    for step in count(0, 1 if ALL else 3 if losses in ("kept", "lost") else 5):
        front, behind, lost = server.fresh_url(), databases(), LOSSES[losses](step)
        words, ended = die_at(step, front, behind, scenario)
        if lost:
            server.ask("FLUSHALL")
        with penstock.connect(front, pool=behind) as broker:
            _check(broker, words, states)
            if not lost:
                server.ask("FLUSHALL")
                assert broker.tube("t").tasks() == [], f"step {step}: what was acked came back"
        if ended:
            break


def _check(broker: penstock.Broker, words: list[str], states: dict[str, Contents]) -> None:
    """Assert that the state is that of the last report or the next one, and that each ready task can be taken once."""
    names = list(states)
    last = names.index(words[-1] if words else "")
    tube = broker.tube("t")
    broker.runtime.reap()  # as every penstock process on the host does, twice a second
    there = [(task.data, str(task.status)) for task in tube.tasks()]
    assert sorted(map(str, there)) in [sorted(map(str, states[name])) for name in names[last : last + 2]], words
    ready = [data for data, status in there if status == "r"]
    taken = tube.take_many(9)
    assert sorted(map(str, ready)) == sorted(str(task.data) for task in taken), words
    assert tube.ack_many(taken) == [True] * len(taken)
    assert broker.check() == []
    while tube.tasks():  # a removed task may leave a reply
        tube.truncate()


def test_what_a_dead_process_left_behind_is_written_by_the_next_take(connect: Connect, server: Redis) -> None:
    one, other = connect(), connect()
    tube, store = one.tube("t").stored, one.runtime.store
    assert isinstance(store, PoolStore)
    RedisStore.put(store, tube, [plain_entry(tube, b'"left"')])  # a put that dies between its script and its commit
    assert take(other.tube("t")).data == "left"
    server.ask("FLUSHALL")
    assert [task.data for task in other.tube("t").tasks()] == ["left"]

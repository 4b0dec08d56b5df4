"""Many takers at once, in processes and in threads: nothing runs twice, nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from tests.fault.invariants import counters_equal_a_recount, require
from tests.support.peer import ROOT, environment
from tests.support.process_pool import PATIENCE, TAKERS, in_processes, meet
from tests.support.threads import begin, until

TASKS = 2_000
Handed = list[tuple[int, int]]


def work(url: str) -> Handed:
    """Take and ack until nothing is left; each process waits for the others after its first task."""
    found = []
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        while (task := tube.take(0)) is not None:
            found.append((task.id, task.lease))
            if len(found) == 1:
                meet()
            task.ack()
    return found


def must_be_each_once(handed: list[Handed], broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    counted = Counter(pair for found in handed for pair in found)
    require("I3", all(times == 1 for times in counted.values()), counted.most_common(3))
    require("I1", set(counted) == {(id, 1) for id in range(1, TASKS + 1)}, len(counted))
    require("I4", tube.stats().calls.ack == TASKS, tube.stats())
    assert counters_equal_a_recount(broker, tube) == []
    assert all(handed), "some takers had no work, so they raced with nobody"


@pytest.mark.parametrize("kind", ["fifo", "utubettl"])
def test_eight_processes_never_get_the_same_lease(url: str, broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many((n, {"utube": n % 100} if kind == "utubettl" else {}) for n in range(TASKS))
    must_be_each_once(in_processes(work, url), broker)


def test_threads_of_one_broker_never_get_the_same_lease(url: str, broker: penstock.Broker) -> None:
    tube, session = broker.tube("t"), broker.session()
    start, met = threading.Barrier(TAKERS + 2), threading.Barrier(TAKERS)

    def put(first: int) -> list[int]:
        start.wait()
        return [tube.put(number).id for number in range(first, first + TASKS // 2)]

    def take() -> Handed:
        start.wait()
        found, own = [], session.tube("t")
        with suppress(penstock.NotFound):  # the session was closed between two takes
            while (task := own.take()) is not None:
                found.append((task.id, task.lease))
                if len(found) == 1:
                    met.wait(PATIENCE)
                task.ack()
        return found

    putting = [begin(lambda first=first: put(first)) for first in (0, TASKS // 2)]  # type: ignore[misc]
    taking = [begin(take) for _ in range(TAKERS)]
    ids = [id for future in putting for id in future.result(PATIENCE)]
    assert sorted(ids) == list(range(1, TASKS + 1))
    until(lambda: tube.stats().tasks.total == 0, PATIENCE)
    session.close()  # which ends the takes
    must_be_each_once([future.result(PATIENCE) for future in taking], broker)


def test_two_brokers_of_one_process_are_two_sessions(url: str, broker: penstock.Broker) -> None:
    with penstock.connect(url) as other:
        mine, theirs = broker.tube("t", kind="fifo"), other.tube("t")
        mine.put_many(["a", "b"])
        one, two = mine.take(0), theirs.take(0)
        assert one is not None
        assert two is not None
        with pytest.raises(penstock.NotTaken):
            mine.ack(two.id)
        assert len({seen.id for seen in broker.sessions()}) == 2
        two.ack()
    one.ack()
    assert mine.stats().calls.ack == 2


# Run in a separate process: a test runner has threads, which a fork would not copy.
_FORK = """
import json, os, sys, penstock

def show(text):
    os.write(1, (json.dumps(text) + "\\n").encode())

broker = penstock.connect(sys.argv[1])
tube = broker.tube("t", kind="fifo")
tube.put_many(["a", "b", "c"])
mine = tube.take(0)
explicit = broker.session()
kept = explicit.tube("t").take(0)
child = os.fork()
if child == 0:
    try:
        mine.ack()
    except penstock.NotTaken:
        show("the child cannot ack the parent's")
    try:
        explicit.tube("t").take(0)
    except penstock.NotFound:
        show("the explicit session stays the parent's")
    task = tube.take(0)
    show([task.data, len(broker.sessions())])
    task.ack()
    tube.put("d")
    if sys.argv[2] == "close":
        broker.close()
    os._exit(0)
os.waitpid(child, 0)
show([tube.stats().tasks.taken, tube.take(1.0).data, tube.take(0)])
mine.ack()
kept.ack()
show([tube.stats().calls.ack, [str(finding) for finding in broker.check()]])
broker.close()
"""


@pytest.mark.parametrize("ending", ["close", "exit"])
def test_a_fork_has_its_own_session(url: str, ending: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK, url, ending],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        "the child cannot ack the parent's",
        "the explicit session stays the parent's",
        ["c", 3],
        [2, "d", None],
        [3, []],
    ]


def _forked_worker(url: str, broker: penstock.Broker, answer: object) -> None:
    task = broker.tube("t").take(60)
    assert task is not None
    task.ack()
    answer.put((os.getpid(), task.id))  # type: ignore[attr-defined]


_POOL = """
import multiprocessing, sys
import penstock
from tests.processes.test_many import _forked_worker

broker = penstock.connect(sys.argv[1])
tube = broker.tube("t", kind="fifo")
tube.put_many(range(4))
first = tube.take(0)
context = multiprocessing.get_context("fork")
answers = context.Queue()
children = [context.Process(target=_forked_worker, args=(sys.argv[1], broker, answers)) for _ in range(3)]
for child in children:
    child.start()
found = [answers.get(timeout=100) for _ in children]
for child in children:
    child.join()
first.ack()
assert sorted(id for _, id in found) == [2, 3, 4], found
assert len({pid for pid, _ in found}) == 3
assert [child.exitcode for child in children] == [0, 0, 0]
assert tube.stats().calls.ack == 4
broker.close()
"""


def test_a_broker_is_inherited_by_forked_workers(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _POOL, url],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

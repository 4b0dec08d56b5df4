"""A taker that dies or freezes: the kernel's lock tells the others, or the heartbeat where there is no lock."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.core.results import Presence
from penstock.testing import Clock
from tests.support.inspection import waiters
from tests.support.peer import PATIENCE, Peer
from tests.support.threads import begin, until
from tests.support.verbs import take

# Less than the 15 s after which the heartbeat would report it.
SOON = 10.0


@pytest.fixture
def held(broker: penstock.Broker, peer: Callable[[], Peer]) -> tuple[penstock.Tube, Peer]:
    """A tube whose one task another process holds."""
    tube, holder = broker.tube("t", kind="fifo"), peer()
    tube.put("x")
    assert holder.ask("take", "t", 0) == {"id": 1, "lease": 1}
    return tube, holder


def test_a_killed_takers_task_goes_to_a_blocked_taker(
    held: tuple[penstock.Tube, Peer], broker: penstock.Broker, peer: Callable[[], Peer]
) -> None:
    waiting = peer()
    waiting.send("take", "t", PATIENCE)
    until(lambda: waiters(broker, "t") == 1)
    held[1].kill()
    killed = time.monotonic()
    assert waiting.answer() == {"id": 1, "lease": 2}
    assert time.monotonic() - killed < SOON


def test_a_killed_takers_task_goes_to_a_polling_taker(held: tuple[penstock.Tube, Peer]) -> None:
    tube, holder = held
    assert tube.take(0) is None
    holder.kill()
    killed = time.monotonic()
    until(lambda: tube.take(0) is not None)
    assert time.monotonic() - killed < SOON


def test_stats_and_sessions_notice_a_killed_taker(held: tuple[penstock.Tube, Peer], broker: penstock.Broker) -> None:
    tube, holder = held
    assert (tube.stats().tasks.taken, [seen.pid for seen in broker.sessions()]) == (1, [holder.pid])
    holder.kill()
    killed = time.monotonic()
    until(lambda: tube.stats().tasks.ready == 1)
    assert time.monotonic() - killed < SOON
    assert broker.sessions() == []
    assert tube.stats().calls.release == 1


def test_a_dead_process_leaves_no_lock_behind(held: tuple[penstock.Tube, Peer], tmp_path: Path) -> None:
    tube, holder = held
    assert len(list((tmp_path / "locks").glob("*/*"))) == 1
    holder.kill()
    until(lambda: tube.stats().tasks.ready == 1)
    assert list((tmp_path / "locks").glob("*/*")) == []


def test_a_child_of_a_killed_process_does_not_keep_its_lock(held: tuple[penstock.Tube, Peer]) -> None:
    tube, holder = held
    child = holder.ask("fork_a_sleeper")["child"]
    try:
        holder.kill()
        killed = time.monotonic()
        until(lambda: tube.take(0) is not None)
        assert time.monotonic() - killed < SOON
        os.kill(child, 0)  # it still exists
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_live_taker_keeps_its_task_however_often_peers_check_it(held: tuple[penstock.Tube, Peer]) -> None:
    tube, holder = held
    assert tube.take(1.5) is None  # three scans of the locks
    assert holder.ask("ack") == {}
    assert tube.stats().calls.ack == 1


def test_a_session_whose_lock_file_is_gone_is_left_to_its_heartbeat(
    held: tuple[penstock.Tube, Peer], tmp_path: Path
) -> None:
    tube, holder = held
    [lock] = [path for path in (tmp_path / "locks").glob("*/*") if path.is_file()]
    lock.unlink()
    holder.kill()
    assert tube.take(1.5) is None  # unknown, so not dead
    assert tube.stats().tasks.taken == 1


def test_a_session_on_another_host_is_not_ended_by_a_lock_on_this_one(broker: penstock.Broker) -> None:
    """The same folder name on another boot or in another container: its lock means nothing here."""
    tube, store = broker.tube("t", kind="fifo"), broker.runtime.store
    tube.put("x")
    locks = broker.runtime.locks
    assert locks is not None
    for handle, locus in (("elsewhere", "another boot"), ("here", locks.locus)):
        store.join(Presence(handle, "host", 1, locus), None, 0)
    store.take([tube.stored], 1, "elsewhere")
    locks._folder.mkdir(exist_ok=True)
    for handle in ("elsewhere", "here"):
        (locks._folder / handle).touch()  # unlocked, as after a crash
    until(lambda: len(broker.sessions()) == 1)
    assert [seen.held for seen in broker.sessions()] == [[("t", 1)]]
    assert tube.stats().tasks.taken == 1


def test_a_frozen_worker_cannot_settle_what_was_given_to_another(
    broker: penstock.Broker, peer: Callable[[], Peer], url: str
) -> None:
    broker.tube("t", ttr=5).put("x")
    frozen = peer()
    assert frozen.ask("take", "t", 0) == {"id": 1, "lease": 1}
    frozen.stop()
    with penstock.connect(url, clock=Clock(time.time() + 5)) as later:  # its ttr is over, its session is not
        task = take(later.tube("t"))
        assert task.lease == 2
        task.touch(PATIENCE)
        frozen.resume()
        assert frozen.ask("ack") == {"error": "NotTaken"}
        assert later.tube("t").stats().calls.ttr == 1
        task.ack()


def test_a_frozen_process_is_not_dead(held: tuple[penstock.Tube, Peer]) -> None:
    tube, holder = held
    holder.stop()
    assert tube.take(1.5) is None
    holder.resume()
    assert holder.ask("ack") == {}


def test_a_put_in_another_process_wakes_a_taker_without_the_scan(
    broker: penstock.Broker, peer: Callable[[], Peer]
) -> None:
    broker.tube("t")
    taker, putter = peer(), peer()
    taker.ask("without_scan")
    taker.send("take", "t", PATIENCE)
    until(lambda: waiters(broker, "t") == 1)
    assert putter.ask("put", "t", "x") == {"id": 1}
    assert taker.answer() == {"id": 1, "lease": 1}


def test_a_closed_broker_of_another_process_wakes_a_taker_without_the_scan(
    held: tuple[penstock.Tube, Peer], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr("penstock.runtime.heartbeat.SCAN_SECONDS", 600.0)
    with penstock.connect(url) as broker:
        waiting = begin(lambda: broker.tube("t").take(PATIENCE))
        until(lambda: waiters(broker, "t") == 1)
        assert held[1].ask("close") == {}
        task = waiting.result(timeout=PATIENCE)
        assert task is not None
        assert task.lease == 2
        task.ack()

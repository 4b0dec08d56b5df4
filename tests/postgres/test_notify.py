"""What wakes other processes: a notification, without their scan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.runtime import heartbeat as heartbeat
from tests.support.peer import Peer
from tests.support.threads import begin, until
from tests.support.verbs import take

SOON = 30.0  # the scan is switched off


@pytest.fixture
def peer(url: str, broker: penstock.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """Another process that only notifications wake."""
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    with Peer(url) as peer:
        peer.ask("without_scan")
        yield peer


def await_taker(broker: penstock.Broker) -> None:
    until(lambda: any(session.waits for session in broker.sessions()))
    time.sleep(0.3)  # past the take that follows a registration


def test_a_put_right_after_an_ack_is_notified(broker: penstock.Broker, peer: Peer) -> None:
    broker.tube("work").put("held")
    held = take(broker.tube("work"))
    tube = broker.tube("quiet")
    peer.send("take", "quiet", 60)
    await_taker(broker)
    held.ack()
    tube.put("x")
    assert peer.answer(SOON)["id"] == 1


def test_a_reply_is_notified(broker: penstock.Broker, peer: Peer) -> None:
    broker.tube("replies")
    tube = broker.tube("work")
    tube.put("x", reply_to="replies")
    held = take(tube)
    peer.send("take", "replies", 60)
    await_taker(broker)
    held.ack()
    assert peer.answer(SOON)["id"] == 1


def test_the_start_of_a_group_is_reported(broker: penstock.Broker, peer: Peer) -> None:
    group = broker.tube("work").group("g")
    group.put("x")
    peer.send("take", "work", 60)
    await_taker(broker)
    group.start()
    assert peer.answer(SOON)["id"] == 1


def test_the_end_of_a_task_wakes_those_waiting_for_its_address(
    broker: penstock.Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "SCAN_SECONDS", 600.0)
    tube = broker.tube("work")
    for number in range(3):  # the first one starts to listen, the others listen already
        tube.put(number, address="a")
        peer.ask("take", "work", 0)
        waiting = begin(lambda: tube.wait("a", 60))
        until(lambda: len(broker.runtime.wait_queue.topics) == 1)
        peer.ask("ack")
        assert waiting.result(SOON).status == "done"

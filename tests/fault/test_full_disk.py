"""A full disk: puts raise and store nothing, stored tasks stay, and everything works again after space was freed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock.testing import Clock
from tests.fault.invariants import counters_equal_a_recount, require
from tests.support.sqlite_files import connection_of

PAYLOAD = "x" * 20_000


class Disk:
    """A small disk for a queue: `give_room` makes it larger."""

    def __init__(self, folder: Path, give_room: Callable[[penstock.Broker], object], limit: int | None) -> None:
        self.folder = folder
        self.give_room = give_room
        self._limit = limit

    def connect(self) -> penstock.Broker:
        """Connect with a stopped clock: heartbeats cannot be written, and no session may lapse for lack of them."""
        broker = penstock.connect(f"sqlite:///{self.folder}/queue.db", clock=Clock())
        if self._limit is not None:
            _limit_pages(broker, self._limit)
        return broker


def _limit_pages(broker: penstock.Broker, pages: int) -> None:
    connection_of(broker).open().pragma("max_page_count", pages)


@pytest.fixture(params=["page limit", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """SQLite's own size limit, and a real full file system if this user may mount one."""
    if request.param == "page limit":
        yield Disk(tmp_path, lambda broker: _limit_pages(broker, 100_000), 200)
        return
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "penstock-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no right to mount a small tmpfs here: {done.stderr.strip()}")
    try:
        ballast = folder / "ballast"
        # The freed space is larger than SQLite's log before its own checkpoint, about 4 MB.
        ballast.write_bytes(b"\0" * 6_500_000)
        yield Disk(folder, lambda broker: ballast.unlink(), None)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(tube: penstock.Tube) -> list[int]:
    """Put until the disk is full. Returns the ids of the puts that returned."""
    stored: list[int] = []
    with pytest.raises(penstock.StoreFull, match="no space left"):
        while len(stored) < 1_000:
            stored.append(tube.put(PAYLOAD).id)
    assert stored, "not one put found room"
    return stored


def test_a_put_without_room_is_full_and_nothing_is_lost(disk: Disk) -> None:
    with disk.connect() as broker:
        tube = broker.tube("t", kind="fifo")
        stored = fill(tube)
        with pytest.raises(penstock.StoreFull):
            tube.put_many([PAYLOAD] * 50)
        disk.give_room(broker)
        require("I1", [task.id for task in tube.tasks(limit=1_000)] == stored)
        assert counters_equal_a_recount(broker, tube) == []
        assert tube.put("room again").id == stored[-1] + 1


def test_settling_without_room_works_or_fails_cleanly(disk: Disk) -> None:
    with disk.connect() as broker:
        tube = broker.tube("t", kind="fifo")
        tube.put_many([PAYLOAD] * 5)
        held = tube.take_many(3)
        stored = fill(tube)
        done = 0
        settles: list[Callable[[], None]] = [held[0].ack, held[1].ack, held[2].release, lambda: tube.delete(stored[0])]
        for settle in settles:
            with suppress(penstock.StoreFull):
                settle()
                done += 1
        disk.give_room(broker)
        assert counters_equal_a_recount(broker, tube) == []
        calls = tube.stats().calls
        assert calls.ack + calls.release + calls.delete == done
        for task in held:
            if task.status == "t":
                task.ack()
        require("L2", tube.stats().tasks.taken == 0)


def test_a_full_disk_drains_when_there_is_room(disk: Disk) -> None:
    with disk.connect() as broker:
        tube = broker.tube("t", kind="utube")
        stored = fill(tube)
        disk.give_room(broker)
        handed = []
        while (task := tube.take(0)) is not None:
            handed.append(task.id)
            task.ack()
        require("L2", handed == stored)
        assert broker.check() == []


def test_what_was_stored_on_a_full_disk_is_there_after_a_restart(disk: Disk) -> None:
    broker = disk.connect()
    stored = fill(broker.tube("t", kind="fifo"))
    disk.give_room(broker)
    broker.close()
    with penstock.connect(f"sqlite:///{disk.folder}/queue.db") as broker:
        tube = broker.tube("t")
        require("I1", [task.id for task in tube.tasks(limit=1_000)] == stored)
        assert {task.data for task in tube.tasks(limit=1_000)} == {PAYLOAD}

"""A process that waits for another's commit sleeps until the kernel reports a write, and reads only then."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from penstock.store.sqlite import watching
from penstock.store.sqlite.watching import Watch
from penstock.system.wake import Wake
from tests.support.threads import begin, until


class File:
    """A database with two connections: one reads, and counts its reads; the other writes."""

    def __init__(self, path: Path) -> None:
        self._writing = apsw.Connection(str(path))
        self._writing.pragma("journal_mode", "wal")
        self._writing.execute("CREATE TABLE t (n)")
        self._looking = apsw.Connection(str(path))
        self.looks = 0
        self.watch = Watch(str(path), self._look)

    def _look(self) -> int:
        self.looks += 1
        return int(self._looking.execute("PRAGMA data_version").get)

    def await_idle(self) -> None:
        """Wait without any write until reads have become rare; a busy machine needs a while."""
        while self.watch._pause < watching._LAST_LOOK:
            assert not self.watch.wait(Wake(), 0.1)

    def write(self) -> None:
        self._writing.execute("INSERT INTO t VALUES (1)")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    file = File(tmp_path / "queue.db")
    assert file.watch.wait(Wake(), 30), "the first look sees what was there"
    yield file
    file.watch.close()


def test_nothing_is_read_while_nothing_is_written(file: File) -> None:
    file.await_idle()
    before = file.looks
    assert not file.watch.wait(Wake(), 1.0)
    assert file.looks - before <= 1, "at the end of its time"


def test_a_write_of_another_connection_ends_the_sleep(file: File) -> None:
    file.await_idle()
    found = begin(lambda: file.watch.wait(Wake(), 30))
    file.write()
    assert found.result(timeout=20) is True


def test_a_write_between_two_sleeps_is_seen(file: File) -> None:
    file.await_idle()
    file.write()
    assert file.watch.wait(Wake(), 30)


def test_a_sleeping_watcher_is_woken(file: File) -> None:
    wake = Wake()
    file.await_idle()
    found = begin(lambda: file.watch.wait(wake, 30))
    wake.set()
    assert found.result(timeout=20) is False


def test_frequent_writes_cause_rare_reads(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may all be our own."""
    monkeypatch.setattr(watching, "_LAST_LOOK", 60.0)
    file.watch._pause = 60.0
    file.write()
    before = file.looks
    file.watch.wait(Wake(), 0.3)
    assert file.looks == before + 1, "at the end of its time"


def test_without_inotify_it_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "watch_writes", lambda path: None)
    file = File(tmp_path / "queue.db")
    assert file.watch.wait(Wake(), 30)
    found = begin(lambda: file.watch.wait(Wake(), 30))
    until(lambda: file.looks > 5)
    file.write()
    assert found.result(timeout=20) is True


def test_a_wake_can_be_polled_as_long_as_it_is_set() -> None:
    wake = Wake()
    wake.set()
    poll = select.poll()
    poll.register(wake.fileno(), select.POLLIN)
    assert poll.poll(0)
    wake.clear()
    assert not poll.poll(0)
    assert not wake.is_set()
    wake.set()
    wake.set()
    assert poll.poll(0)
    wake.clear()
    assert not poll.poll(0)

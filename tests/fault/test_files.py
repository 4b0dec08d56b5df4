"""Damaged, missing, replaced, locked or foreign files: refused with a reason, and never overwritten."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.store.sqlite import file
from penstock.store.sqlite import sqlite_connection as connection
from tests.support.sqlite_files import held

PAGE = 2048


def connect(path: Path) -> penstock.Broker:
    return penstock.connect(f"sqlite:///{path}")


def filled(path: Path, count: int = 2_000) -> None:
    with connect(path) as broker:
        broker.tube("t", kind="fifo").put_many(f"task {number} {'x' * 100}" for number in range(count))


def page_of_tasks(path: Path) -> int:
    """The number of a page in the middle of the task table."""
    db = apsw.Connection(str(path))
    query = "SELECT pageno FROM dbstat WHERE name = 'penstock_task' AND pagetype = 'leaf' ORDER BY path"
    pages = [page for (page,) in db.execute(query)]
    db.close()
    return int(pages[len(pages) // 2])


@pytest.mark.parametrize(
    "content",
    [b"this is not a database\n" * 300, b"\x00" * PAGE, b"SQLite format 3\x00" + b"\xff" * 5000, b"short\n"],
    ids=["text", "zeros", "header only", "a few bytes"],
)
def test_a_file_that_is_not_a_database_is_refused_and_left_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(penstock.StoreCorrupt, match="left unchanged"):
        connect(path)
    assert path.read_bytes() == content
    assert list(path.parent.glob("queue.db-*")) == []


def test_a_damaged_header_is_refused_and_left_alone(path: Path) -> None:
    filled(path)
    content = b"garbage!" + path.read_bytes()[8:]
    path.write_bytes(content)
    with pytest.raises(penstock.StoreCorrupt):
        connect(path)
    assert path.read_bytes() == content


def test_a_call_that_reads_a_damaged_page_raises_store_corrupt(path: Path) -> None:
    filled(path)
    content = bytearray(path.read_bytes())
    middle = (page_of_tasks(path) - 1) * PAGE
    content[middle : middle + PAGE] = b"\xa5" * PAGE
    path.write_bytes(content)
    with connect(path) as broker:
        with pytest.raises(penstock.StoreCorrupt, match="restore a backup"):
            broker.tube("t").tasks(limit=10_000)
        with pytest.raises(penstock.StoreCorrupt):
            broker.check(repair=True)
    assert path.read_bytes()[middle : middle + PAGE] == b"\xa5" * PAGE


def test_damage_that_sqlite_tolerates_is_a_finding(path: Path) -> None:
    """An index without an entry: check reports the file, and repairs nothing that depends on it."""
    filled(path, 10)
    db = apsw.Connection(str(path))
    db.execute("PRAGMA writable_schema = ON")
    db.execute(
        "UPDATE sqlite_master SET sql = replace(sql, 'tube, state, owner', 'tube, state, pri') "
        "WHERE name = 'penstock_aside'"
    )
    db.execute(
        "UPDATE sqlite_master SET sql = replace(sql, 'rank1 ANY NOT NULL', 'rank1 TEXT NOT NULL') "
        "WHERE name = 'penstock_task'"
    )
    db.close()
    with connect(path) as broker:
        findings = broker.check(repair=True)
    assert findings
    assert {finding.remedy for finding in findings} == {"restore a backup"}


@pytest.mark.parametrize(
    "damage", ["kind = '{'", "kind = '[]'", "options = 'nonsense'", "options = '7'", "options = '{\"ttl\": -1}'"]
)
def test_an_unreadable_declaration_is_reported_with_its_tube(path: Path, damage: str) -> None:
    filled(path, 1)
    with connect(path) as broker:
        db = apsw.Connection(str(path))
        db.execute(f"UPDATE penstock_tube SET {damage}")
        db.close()
        for call in (broker.tubes, broker.check, lambda: broker.tube("t")):
            with pytest.raises(penstock.StoreCorrupt, match="the declaration of tube t cannot be read"):
                call()


def test_an_empty_file_becomes_a_queue(path: Path) -> None:
    path.touch()
    with connect(path) as broker:
        assert broker.tube("t").put("x").id == 1


def test_a_missing_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(penstock.StoreUnavailable, match="folder exists"):
        connect(tmp_path / "missing" / "queue.db")
    assert not (tmp_path / "missing").exists()


def test_a_folder_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(penstock.StoreUnavailable):
        connect(tmp_path / "file" / "queue.db")
    assert (tmp_path / "file").read_text() == "x"


def test_a_path_that_is_a_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(penstock.StoreUnavailable):
        connect(tmp_path)


def test_an_application_that_shares_the_file_keeps_its_tables(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)")
    db.close()
    with connect(path) as broker:
        broker.tube("t").put("x")
    db = apsw.Connection(str(path))
    assert db.execute("SELECT x FROM mine").get == 1
    db.close()


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.51.2"])
def test_a_sqlite_version_that_can_corrupt_files_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(penstock.StoreUnavailable, match="can corrupt"):
        connect(path)
    assert not path.exists()


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "4.0.0"])
def test_a_safe_sqlite_version_is_accepted(path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    connect(path).close()
    assert path.exists()


# the file under a running broker


def test_a_removed_file_is_never_written_to(path: Path, broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("before")
    path.unlink()
    with pytest.raises(penstock.StoreUnavailable, match="was removed while"):
        tube.put("lost?")
    assert not path.exists()


def test_a_replaced_file_is_never_written_to(path: Path, broker: penstock.Broker, tmp_path: Path) -> None:
    tube = broker.tube("t")
    tube.put("before")
    other = tmp_path / "other.db"
    filled(other, 3)
    before = other.read_bytes()
    other.replace(path)
    for call in (lambda: tube.put("lost?"), lambda: tube.take(0), lambda: tube.kick(), lambda: tube.delete(1)):
        with pytest.raises(penstock.StoreUnavailable, match="replaced"):
            call()
    assert path.read_bytes() == before


def test_a_file_put_back_works_again(path: Path, broker: penstock.Broker, tmp_path: Path) -> None:
    tube = broker.tube("t")
    tube.put("before")
    aside = tmp_path / "aside.db"
    path.rename(aside)
    with pytest.raises(penstock.StoreUnavailable):
        tube.put("lost?")
    aside.rename(path)
    assert [task.data for task in tube.tasks()] == ["before"]
    assert tube.put("after").id == 2


# the write lock


def test_a_write_lock_held_for_too_long_is_busy(
    path: Path, broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.05)
    tube = broker.tube("t")
    tube.put("before")
    with held(path):
        with pytest.raises(penstock.StoreBusy, match="another process"):
            tube.put("lost?")
        with pytest.raises(penstock.StoreBusy):
            tube.take(0)
        assert tube.peek(1).data == "before", "readers wait for nobody"
    assert [task.data for task in tube.tasks()] == ["before"]
    assert tube.put("after").id == 2


def test_reopening_a_busy_file_fails_and_leaves_it_intact(
    path: Path, broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.05)
    broker.tube("t").put("x")
    with held(path), pytest.raises(penstock.StoreBusy):
        connect(path)
    with connect(path) as other:
        assert other.tube("t").peek(1).data == "x"


def test_a_new_file_that_another_process_is_just_making_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(time, "sleep", lambda seconds: other.in_transaction and other.execute("ROLLBACK"))
    with connect(path) as broker:
        assert broker.tube("t").put("x").id == 1
    other.close()


def test_a_new_file_that_another_process_keeps_locked_is_busy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.05)
    with held(path), pytest.raises(penstock.StoreBusy):
        connect(path)


def test_a_copied_backup_is_a_queue(path: Path, tmp_path: Path) -> None:
    filled(path, 10)
    shutil.copy(path, tmp_path / "backup.db")
    with connect(tmp_path / "backup.db") as broker:
        assert broker.tube("t").stats().tasks.ready == 10
        assert broker.check() == []


def open_on(path: Path) -> list[str]:
    """The file descriptors of this process on the file and its log, unlinked ones included."""
    links = [descriptor.readlink() for descriptor in Path("/proc/self/fd").iterdir() if descriptor.is_symlink()]
    return [str(link) for link in links if str(link).startswith(str(path))]


@pytest.mark.parametrize("swap", ["replaced", "gone"])
def test_close_after_the_file_was_replaced_raises_nothing_and_leaves_nothing_open(path: Path, swap: str) -> None:
    broker = connect(path)
    tube = broker.tube("t")
    tube.put("x")
    assert tube.take(0) is not None
    if swap == "replaced":
        shutil.copy(path, path.with_name("other"))
        path.with_name("other").rename(path)
    else:
        path.unlink()
    with pytest.raises(penstock.StoreUnavailable):
        tube.put("y")
    broker.close()
    assert open_on(path) == []


def test_writes_after_the_log_is_removed_raise(path: Path) -> None:
    """Writes to an unlinked log are lost when the last broker closes."""
    broker = connect(path)
    tube = broker.tube("t")
    tube.put("x")
    path.with_name("queue.db-wal").unlink()
    time.sleep(connection._LOG_SECONDS)
    for write in (lambda: tube.put("y"), lambda: tube.put_many(["y"]), lambda: tube.take(0)):
        with pytest.raises(penstock.StoreUnavailable, match="queue.db-wal was removed"):
            write()
    broker.close()
    assert open_on(path) == []

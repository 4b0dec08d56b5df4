"""Network file systems, where SQLite's write-ahead log loses data: found in the mount table, and refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock
from penstock.system import mounts
from penstock.system.mounts import file_system

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:20 / /proc rw,nosuid - proc proc rw
40 22 0:40 / /mnt/share rw,relatime shared:2 master:1 - nfs4 server:/export rw,vers=4.2
41 40 254:1 / /mnt/share/disk rw - xfs /dev/vdb rw
42 22 0:42 / /mnt/with\040space rw - cifs //server/share rw
43 22 0:43 / /mnt/over rw - nfs server:/old rw
44 43 254:2 / /mnt/over rw - ext4 /dev/vdc rw
45 22 0:45 / /mnt/ssh rw - fuse.sshfs user@host: rw
46 22 0:46 / /mnt/sharep rw - btrfs /dev/vdd rw
47 22 0:47 / /mnt/tab\011and\134slash rw - 9p share rw
48 22 0:48 / /mnt/no-options rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib/app", "ext4"),
        ("/proc/1", "proc"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/er", "nfs4"),
        ("/mnt/share/disk/queue", "xfs"),
        ("/mnt/sharep", "btrfs"),
        ("/mnt/shared", "ext4"),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/over/x", "ext4"),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/mnt/tab\tand\\slash/x", "9p"),
        ("/mnt/no-options", "tmpfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert file_system(MOUNTS, path) == kind


def test_an_unreadable_mount_table_names_no_file_system() -> None:
    assert file_system("", "/var") == ""
    assert file_system("a line without a separator\n", "/var") == ""


def test_names_of_other_scripts_in_the_mount_table() -> None:
    table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n40 22 0:40 / /mnt/größe rw - nfs4 server:/export rw"
    assert file_system(table, "/mnt/größe/x") == "nfs4"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs"])
def test_a_queue_on_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(mounts, "file_system", lambda table, folder: kind)
    with pytest.raises(penstock.StoreUnavailable, match=kind):
        penstock.connect(f"sqlite:///{path}")
    assert not path.exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", ""])
def test_a_queue_on_a_local_file_system_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(mounts, "file_system", lambda table, folder: kind)
    penstock.connect(f"sqlite:///{path}").close()
    assert path.exists()


def test_a_link_is_followed_to_where_the_file_is(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system of the target folder counts, not that of the symbolic link."""
    asked: list[str] = []

    def local(table: str, folder: str) -> str:
        asked.append(folder)
        return "ext4"

    monkeypatch.setattr(mounts, "file_system", local)
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    penstock.connect(f"sqlite:///{tmp_path}/link/queue.db").close()
    assert asked == [str(tmp_path / "real")]


def test_a_file_that_is_a_link_to_the_network_is_refused(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite follows the symbolic link and keeps its log next to the real file."""
    (tmp_path / "far").mkdir()
    os.symlink(tmp_path / "far" / "queue.db", path)
    far = str(tmp_path / "far")
    monkeypatch.setattr(mounts, "file_system", lambda table, folder: "nfs4" if folder == far else "ext4")
    with pytest.raises(penstock.StoreUnavailable, match="nfs4"):
        penstock.connect(f"sqlite:///{path}")

"""Whether a path is a place where SQLite's WAL is safe: a local file system, and still the same file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.errors import StoreUnavailable

# WAL needs memory shared between all processes, which these cannot give.
_NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)
# mountinfo writes space, tab, newline and backslash of a path so.
_OCTAL = re.compile(r"\\([0-7]{3})")
_NETWORK_FUSE = frozenset({"fuse.sshfs", "fuse.glusterfs", "fuse.cephfs", "fuse.rclone", "fuse.s3fs", "fuse.juicefs"})


def refuse_network(path: Path) -> None:
    """StoreUnavailable when the path lies on a network file system."""
    try:
        mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    except OSError:  # not Linux: nothing to read, so nothing is known
        return
    kind = file_system(mounts, os.path.realpath(path))
    if kind in _NETWORK or kind in _NETWORK_FUSE:
        raise StoreUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite loses data: "
            "use a local disk, or a server store (postgresql://, mysql://, redis://)"
        )


def file_system(mountinfo: str, path: str) -> str:
    """The type of the file system a path is on, from the text of /proc/self/mountinfo."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if not right:
            continue
        point = _OCTAL.sub(lambda escape: chr(int(escape[1], 8)), left.split()[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def inode(path: str) -> tuple[int, int]:
    """What identifies the file at a path now."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} is gone from under this broker ({error.strerror}): put it back, or close and connect anew"
        ) from error
    return found.st_dev, found.st_ino

"""The file systems that paths are on, by the mount table of Linux."""

from __future__ import annotations

import os
import re
from pathlib import Path

# Types without memory that processes on several hosts could share.
_NETWORK = frozenset(
    "9p afs beegfs ceph cifs coda gfs2 glusterfs lustre ncpfs nfs nfs4 smb3 smbfs fuse.sshfs fuse.glusterfs "
    "fuse.cephfs fuse.rclone fuse.s3fs fuse.juicefs".split()
)
# How mountinfo writes the space, tab, newline and backslash of a path.
_OCTAL = re.compile(r"\\([0-7]{3})")


def network(path: Path) -> str | None:
    """The type of the network file system that a path is on; None if it is on another one, or if that is unknown."""
    try:
        table = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    except OSError:  # not Linux
        return None
    kind = file_system(table, os.path.realpath(path))
    return kind if kind in _NETWORK else None


def file_system(mountinfo: str, path: str) -> str:
    """The type of the file system that a path is on, from the text of /proc/self/mountinfo."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if right:
            point = _OCTAL.sub(lambda escape: chr(int(escape[1], 8)), left.split()[4])
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):  # a later mount on the same point hides the earlier one
                best, kind = point, right.split()[0]
    return kind

"""Which processes of this host are alive, by OS locks: every session handle holds one while its process lives.

A lock is a file named by the handle, in a folder of this host and store, locked as an open file description:
it works for several sessions of a process, and a forked child closes its copy. If another process can lock such
a file, its owner is dead. A missing file means unknown, never dead: then the heartbeat decides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import tempfile
from pathlib import Path
from uuid import uuid4

from penstock.system.forks import reset_in_child

log = logging.getLogger("penstock")

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Locks of open file descriptions, which only Linux has.
_HAS_LOCKS = hasattr(fcntl, "F_OFD_SETLK")
# struct flock: a write lock on the whole file.
_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0) if _HAS_LOCKS else b""


def open_locks(store: str) -> Locks | None:
    """The locks of a store on this host; None if the system has none, and then the heartbeat alone decides."""
    if not _HAS_LOCKS:
        return None
    root = Path(os.environ.get("PENSTOCK_LOCKS") or Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} belongs to another user")
        return Locks(root, store)
    except OSError as error:
        log.warning("no session locks (%s), so dead processes are noticed late: set PENSTOCK_LOCKS to a folder", error)
        return None


class Locks:
    """The locks of one store's sessions on this host."""

    def __init__(self, root: Path, store: str) -> None:
        self._folder = root / store.replace("/", "_").replace(":", "-")
        self._held: dict[str, int] = {}
        #: Where these locks can be trusted: this boot of this kernel, and this very folder.
        self.locus = f"{_boot_id()} {_folder_id(root)}"
        reset_in_child(self)

    def hold(self, handle: str) -> str:
        """Lock the handle's file until `release` or the end of the process. Returns the locus, or "" if that failed."""
        draft = self._folder / f".{handle}"
        try:
            descriptor = self._create(draft)
        except OSError as error:
            log.warning("cannot lock a session file (%s); if this process dies, others notice it later", error)
            return ""
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK)
        # Visible to others only once it is locked, otherwise a starting process would look dead.
        draft.rename(self._folder / handle)
        self._held[handle] = descriptor
        return self.locus

    def _create(self, draft: Path) -> int:
        while True:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            # The last other process may have removed the folder since; then it is made again.
            with contextlib.suppress(FileNotFoundError):
                return os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def release(self, handle: str) -> None:
        """Remove the file of a handle that has left, and the folder after the last one."""
        descriptor = self._held.pop(handle, None)
        if descriptor is not None:  # in a forked child it is the parent's
            self.remove(handle)
            os.close(descriptor)
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def remove(self, handle: str) -> None:
        """Remove the lock file of a handle, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / handle).unlink()

    def dead(self) -> list[str]:
        """The handles whose processes have ended without leaving."""
        with contextlib.suppress(OSError):  # usually there is no folder, because there is no session
            names = os.listdir(self._folder)
            return [name for name in names if name not in self._held and name[0] != "." and self._is_dead(name)]
        return []

    def after_fork(self) -> None:
        """Close the copies of the parent's locks."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held = {}

    def _is_dead(self, handle: str) -> bool:
        try:
            descriptor = os.open(self._folder / handle, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown-boot"


def _folder_id(root: Path) -> str:
    """The random id of the lock folder, made once. It tells apart the folders of containers on the same kernel."""
    file = root / ".id"
    if not file.exists():
        draft = root / f".id-{uuid4()}"
        draft.touch(0o600)
        draft.write_text(str(uuid4()))
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)  # unlike rename, never replaces another process's
        draft.unlink()
    return file.read_text()

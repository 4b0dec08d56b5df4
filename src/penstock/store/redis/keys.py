"""The names of everything stored: one hash tag a tube, one for the tubes' names, one for the sessions."""

from __future__ import annotations

# Under one tag a cluster keeps all keys on one node, so a script may use them together.
TUBES = "tubes"
SESSIONS = "sessions"


class Keys:
    """The key names of one store, told apart from others on the server by its prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.channel = f"{prefix}:tube_changed".encode()

    def name(self, tag: str | int, part: str) -> bytes:
        """One key: `{penstock:7}:tasks`."""
        return f"{{{self.prefix}:{tag}}}:{part}".encode()


def task_key(id: int) -> bytes:
    """A task's field in the hash of tasks and its name in the indexes: sorts as its id does, in eight bytes of heap."""
    return id.to_bytes(6, "big")


def task_id(key: bytes) -> int:
    """The id in the last six bytes of a key."""
    return int.from_bytes(key[-6:], "big")


MAX_ID = 2**48 - 1

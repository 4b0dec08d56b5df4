"""A store that lacks a part of the contract, as one does that was not taught it yet."""

from __future__ import annotations

from uuid import uuid4

from penstock.store.memory import MemoryStore


class Without:
    """The memory store without the methods of one protocol."""

    def __init__(self, part: type) -> None:
        self._hidden = {name for name in vars(part) if not name.startswith("_")}
        self._whole = MemoryStore(f"memory://{uuid4().hex}")

    def __getattr__(self, name: str) -> object:
        if name in self._hidden:
            raise AttributeError(name)
        return getattr(self._whole, name)

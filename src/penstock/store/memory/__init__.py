"""The memory store: tasks in this process, gone with it."""

from __future__ import annotations

from penstock.store.memory.store import MemoryStore, open_memory

__all__ = ["MemoryStore", "open_memory"]

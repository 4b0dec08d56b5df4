"""The memory store: tasks in this process's memory, gone with it."""

from __future__ import annotations

from penstock.store.memory.database import MemoryDatabase, open_memory

__all__ = ["MemoryDatabase", "open_memory"]

"""The memory store: the reference for every other one, and the model in model tests."""

from __future__ import annotations

from penstock.store.memory.store import MemoryStore, open_memory

__all__ = ["MemoryStore", "open_memory"]

"""The key of a task: its tube's number above so many bits of id."""

from __future__ import annotations

ID_BITS = 40

"""The same verbs, awaited: `async with penstock.aio.connect(url) as broker`."""

from __future__ import annotations

from penstock.aio.handles import Broker, Group, Session, Task, Tube, connect

__all__ = ["Broker", "Group", "Session", "Task", "Tube", "connect"]

"""The same verbs, awaited: `async with penstock.aio.connect(url) as broker`."""

from __future__ import annotations

from penstock.aio.broker import Broker, Session, connect
from penstock.aio.tube import Group, Task, Tube

__all__ = ["Broker", "Group", "Session", "Task", "Tube", "connect"]

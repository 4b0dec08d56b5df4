"""penstock: a durable work queue that starts on one SQLite file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.app.app import App
from penstock.app.call_chain import chain
from penstock.app.current import Bury, Fail, Failures, Retry, Snooze, current_task, current_tasks, waiting
from penstock.broker.broker import Broker, connect
from penstock.broker.group_handle import Group, Progress
from penstock.broker.outcome import Outcome
from penstock.broker.session import Session, SessionInfo
from penstock.broker.stats import TubeInfo, TubeStats
from penstock.broker.tube import Tube
from penstock.core.attempts import Attempt
from penstock.core.backoff import Backoff
from penstock.core.kind import Kind, register_kind
from penstock.core.results import Finding
from penstock.core.task import Status, Task
from penstock.errors import (
    BadValue,
    Cancelled,
    DuplicateAddress,
    LeaseLost,
    NoSuchTube,
    NotFound,
    NotTaken,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TaskFailed,
    TubeBusy,
    TubeExists,
    TubeFull,
    TubeMismatch,
    UnsupportedOption,
)
from penstock.schedule.schedule_status import Schedule

if TYPE_CHECKING:
    from penstock import aio as aio
else:

    def __getattr__(name: str) -> object:
        """Import penstock.aio and penstock.testing on first use: asyncio is slow to import."""
        if name in ("aio", "testing"):
            return import_module(f"penstock.{name}")
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "App",
    "Attempt",
    "Backoff",
    "BadValue",
    "Broker",
    "Bury",
    "Cancelled",
    "DuplicateAddress",
    "Fail",
    "Failures",
    "Finding",
    "Group",
    "Kind",
    "LeaseLost",
    "NoSuchTube",
    "NotFound",
    "NotTaken",
    "Outcome",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PenstockError",
    "Progress",
    "Retry",
    "Schedule",
    "SchemaMismatch",
    "Session",
    "SessionInfo",
    "Snooze",
    "Status",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Task",
    "TaskFailed",
    "Tube",
    "TubeBusy",
    "TubeExists",
    "TubeFull",
    "TubeInfo",
    "TubeMismatch",
    "TubeStats",
    "UnsupportedOption",
    "__version__",
    "chain",
    "connect",
    "current_task",
    "current_tasks",
    "register_kind",
    "waiting",
]

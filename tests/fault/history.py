"""The history of each process of a campaign: one line before every call and one after it, in one file per process.

Times are of the monotonic clock, which all processes of a host share. A call without an outcome was interrupted: it may
have been applied or not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import penstock
import penstock.aio

T = TypeVar("T")


@dataclass
class Call:
    """One call: who made it, on what, when it began and ended, and how."""

    process: str
    op: str
    begun: float
    facts: dict[str, Any] = field(default_factory=dict)
    ended: float | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the call was certainly applied."""
        return self.ended is not None and self.error is None

    @property
    def possible(self) -> bool:
        """Whether the call may have been applied."""
        return self.error is None or self.error == "OutcomeUnknown"

    @property
    def task(self) -> tuple[str, int]:
        """The tube and id of the task."""
        return self.facts["tube"], self.facts["id"]


class Recorder:
    """Writes without a buffer, so that a kill loses no line."""

    def __init__(self, folder: Path, process: str) -> None:
        self._file = os.open(folder / f"{process}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._calls = 0

    def call(self, op: str, work: Callable[[], T], **facts: object) -> T | None:
        """Make the call between its two lines. Returns None if penstock refused it."""
        number = self._begin(op, facts)
        try:
            result = work()
        except penstock.PenstockError as error:
            self._line(n=number, error=type(error).__name__)
            return None
        self._line(n=number, facts=_facts(result))
        return result

    async def await_call(self, op: str, work: Callable[[], Awaitable[T]], **facts: object) -> T | None:
        """The same for an awaitable."""
        number = self._begin(op, facts)
        try:
            result = await work()
        except penstock.PenstockError as error:
            self._line(n=number, error=type(error).__name__)
            return None
        self._line(n=number, facts=_facts(result))
        return result

    def _begin(self, op: str, facts: dict[str, object]) -> int:
        self._calls += 1
        self._line(n=self._calls, op=op, facts=facts)
        return self._calls

    def _line(self, **line: object) -> None:
        os.write(self._file, (json.dumps({"at": time.monotonic(), **line}) + "\n").encode())


def _facts(result: object) -> dict[str, object]:
    if isinstance(result, penstock.Task | penstock.aio.Task):
        return {"id": result.id, "lease": result.lease, "data": result.data, "utube": result.utube}
    if isinstance(result, list):  # of a reliable tube
        tasks = [each for each in result if isinstance(each, penstock.Task)]
        return {"ids": [task.id for task in tasks], "data": [task.data for task in tasks]} if tasks else {"ids": result}
    return {} if result is None else {"count": result}


def read(folder: Path) -> list[Call]:
    """All calls of all processes, in the order they began."""
    calls = [call for file in folder.glob("*.jsonl") for call in _calls(file.stem, file.read_text().splitlines())]
    return sorted(calls, key=lambda call: call.begun)


def _calls(process: str, lines: Iterable[str]) -> list[Call]:
    found: dict[int, Call] = {}
    for text in lines:
        line = json.loads(text)
        if "op" in line:
            found[line["n"]] = Call(process, line["op"], line["at"], line["facts"])
        else:
            call = found[line["n"]]
            call.ended = line["at"]
            call.error = line.get("error")
            call.facts.update(line.get("facts", {}))
    return list(found.values())

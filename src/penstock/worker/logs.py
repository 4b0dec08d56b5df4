"""Log lines of a worker: for people, or one JSON object a line for programs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.logging import RichHandler

from penstock.worker.running_task import RunningTask


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a record with `extra={"item": item}` names its task."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        item = getattr(record, "item", None)
        if isinstance(item, RunningTask):
            fields |= {"tube": item.tube.name, "id": item.task.id, "attempt": item.task.attempts}
            fields |= {} if item.handler is None else {"task": item.handler.name}
        counts = getattr(record, "counts", None)
        if counts is not None:
            fields["counts"] = counts
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def configure(console: Console, *, json: bool) -> None:
    """Log to standard error, unless the program has set up logging itself."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler: logging.Handler
    if json:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
    elif console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False, log_time_format="%Y-%m-%d %H:%M:%S")
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)

"""What a worker prints if there is no terminal: log lines as text or JSON."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime

import msgspec

from penstock.worker.running_task import RunningTask
from penstock.worker.worker import Worker

log = logging.getLogger("penstock.worker")

# Seconds between log lines with the counters.
LOGGED = 10.0


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line; a record with `extra={"item": item}` names its task."""

    def format(self, record: logging.LogRecord) -> str:
        """The JSON text, without a newline."""
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
        elif (facts := vars(record)).get("penstock_id") is not None:  # from inside a handler
            fields |= {name: facts[f"penstock_{name}"] for name in ("tube", "id", "task")}
        counts = getattr(record, "counts", None)
        if counts is not None:
            fields["counts"] = counts
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


class TextFormatter(logging.Formatter):
    """Formats a record as text; a record made inside a handler names its task at the end."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as its class has it
        """The text without a traceback."""
        line, facts = super().formatMessage(record), vars(record)
        if facts.get("penstock_id") is None or "item" in facts:
            return line
        return f"{line} [{facts['penstock_task']} {facts['penstock_id']} of {facts['penstock_tube']}]"


def log_handler(*, json: bool) -> logging.Handler:
    """A log handler that writes text or JSON to standard error."""
    handler = logging.StreamHandler()
    text = TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if json else text)
    return handler


def configure_logging(handler: logging.Handler) -> None:
    """Use this log handler, unless the program has configured logging itself."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(logging.INFO)


class Status:
    """Logs what the worker is doing."""

    pause = LOGGED

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._printed: dict[str, int] = {}

    def shown(self) -> AbstractContextManager[object]:
        """Report while this context is entered."""
        return nullcontext()

    def banner(self) -> None:
        """Log the store, the tubes and the handlers at the start."""
        log.info(
            "worker on %s, tubes %s, concurrency %d", self._worker.where, self._tubes, self._worker.settings.concurrency
        )

    def update(self, doing: str = "working") -> None:
        """Log the counters if they have changed."""
        counts = self._counts()
        if counts != self._printed:
            self._printed = counts
            line = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
            log.info("%s", line or "idle", extra={"counts": counts})

    @property
    def _tubes(self) -> str:
        return ", ".join(source.tube.name for source in self._worker.sources) or "those with callbacks"

    def _counts(self) -> dict[str, int]:
        slots = self._worker.state.slots
        return {"running": slots.running, "waiting": slots.waiting, **self._worker.state.stats.facts()}

"""What a worker prints: a banner, a live line on a terminal, and log lines for people or as JSON."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.live import Live
from rich.logging import RichHandler
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.worker.running_task import RunningTask
from penstock.worker.worker import Worker


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
        elif (facts := vars(record)).get("penstock_id") is not None:  # from inside a handler
            fields |= {name: facts[f"penstock_{name}"] for name in ("tube", "id", "task")}
        counts = getattr(record, "counts", None)
        if counts is not None:
            fields["counts"] = counts
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


class TextFormatter(logging.Formatter):
    """A line for people; a record made inside a handler names its task at the end."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as its class has it
        """The line, without a traceback."""
        line, facts = super().formatMessage(record), vars(record)
        if facts.get("penstock_id") is None or "item" in facts:
            return line
        return f"{line} [{facts['penstock_task']} {facts['penstock_id']} of {facts['penstock_tube']}]"


def configure_logging(console: Console, *, json: bool) -> None:
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
        handler.setFormatter(TextFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)


log = logging.getLogger("penstock.worker")

# Seconds between looks: of the live line, of the log line.
LIVE = 0.25
LOGGED = 10.0


class Status:
    """Tells how the worker is doing, whenever it is asked to."""

    def __init__(self, worker: Worker, console: Console, *, live: bool) -> None:
        self._worker = worker
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None
        self._at, self._done, self._rate = time.monotonic(), 0, 0.0
        self._shown: dict[str, int] = {}
        self.pause = LIVE if live else LOGGED

    def shown(self) -> AbstractContextManager[object]:
        """Show the live line while this context is entered."""
        return self._live or nullcontext()

    def banner(self) -> None:
        """Who starts, on what, with what."""
        where = self._worker.where
        settings, sources = self._worker.settings, self._worker.sources
        tubes = ", ".join(source.tube.name for source in sources) or "those with callbacks"
        if self._live is None:
            log.info("worker on %s, tubes %s, concurrency %d", where, tubes, settings.concurrency)
            return
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold")
        facts.add_column()
        facts.add_row("store", where)
        facts.add_row("tubes", tubes)
        facts.add_row("tasks", ", ".join(self._worker.handler_names) or "none")
        facts.add_row("at once", str(settings.concurrency))
        if settings.limits:
            facts.add_row("limits", ", ".join(f"priority {pri} and below: {most}" for pri, most in settings.limits))
        facts.add_row("stop", "Ctrl-C")
        self._console.print(Panel(facts, title="penstock worker", expand=False))

    def look(self, doing: str = "working") -> None:
        """Show or log the counters; what the worker is `doing` is shown only on a terminal."""
        tally, slots, now = self._worker.state.stats, self._worker.state.slots, time.monotonic()
        if now - self._at >= 1:
            self._rate = (tally.done - self._done) / (now - self._at)
            self._at, self._done = now, tally.done
        counts = {"running": slots.running, "waiting": slots.aside, **tally.facts()}
        if self._live is not None and self._live.is_started:
            self._live.update(self._line(counts, doing), refresh=True)
        elif self._live is not None:
            self._console.print(self._line(counts, doing))
        elif counts != self._shown:
            self._shown = counts
            line = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
            log.info("%s", line or "idle", extra={"counts": counts})

    def _line(self, counts: dict[str, int], doing: str) -> Text:
        line = Text(f"{doing}  ", style="bold green" if doing == "working" else "bold yellow")
        line.append(f"{self._rate:,.0f}/s", style="cyan")
        for name, count in counts.items():
            if count or name in ("running", "done"):
                bad = name in ("buried", "lost")
                line.append(f"  {name} {count:,}", style="red" if bad else "default")
        return line

"""What a worker shows on a terminal: a banner, a live line, and log lines above it. The only part that needs rich."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from rich.console import Console
from rich.live import Live
from rich.logging import RichHandler
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.worker.console import Status, TextFormatter
from penstock.worker.worker import Worker


class LiveStatus(Status):
    """A live status line, updated four times a second."""

    pause = 0.25

    def __init__(self, worker: Worker, console: Console) -> None:
        super().__init__(worker)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._at, self._done, self._rate = time.monotonic(), 0, 0.0

    def shown(self) -> AbstractContextManager[object]:
        """Show the live line while this context is entered."""
        return self._live

    def banner(self) -> None:
        """Show the store, the tubes and the handlers at the start."""
        settings = self._worker.settings
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold")
        facts.add_column()
        facts.add_row("store", self._worker.where)
        facts.add_row("tubes", self._tubes)
        facts.add_row("tasks", ", ".join(self._worker.handler_names) or "none")
        facts.add_row("concurrency", str(settings.concurrency))
        if settings.limits:
            facts.add_row("limits", ", ".join(f"priority {pri} and below: {most}" for pri, most in settings.limits))
        facts.add_row("stop", "Ctrl-C")
        self._console.print(Panel(facts, title="penstock worker", expand=False))

    def update(self, doing: str = "working") -> None:
        """Show the counters and what the worker is doing."""
        counts, now = self._counts(), time.monotonic()
        if now - self._at >= 1:
            self._rate = (counts["done"] - self._done) / (now - self._at)
            self._at, self._done = now, counts["done"]
        if self._live.is_started:
            self._live.update(self._line(counts, doing), refresh=True)
        else:
            self._console.print(self._line(counts, doing))

    def _line(self, counts: dict[str, int], doing: str) -> Text:
        line = Text(f"{doing}  ", style="bold green" if doing == "working" else "bold yellow")
        line.append(f"{self._rate:,.0f}/s", style="cyan")
        for name, count in counts.items():
            if count or name in ("running", "done"):
                bad = name in ("buried", "lost")
                line.append(f"  {name} {count:,}", style="red" if bad else "default")
        return line


def on_terminal() -> tuple[logging.Handler, Callable[[Worker], Status]]:
    """The log handler that prints above the live line, and the live line itself."""
    console = Console(stderr=True)
    handler = RichHandler(console=console, show_path=False, markup=False, log_time_format="%Y-%m-%d %H:%M:%S")
    handler.setFormatter(TextFormatter("%(message)s"))
    return handler, partial(LiveStatus, console=console)

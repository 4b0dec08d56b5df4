"""A worker without handlers that calls the callbacks of a store, for `penstock serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.app.app import App
from penstock.callbacks.allow_list import Settings
from penstock.errors import UnsupportedOption
from penstock.worker.settings import Settings as WorkerSettings
from penstock.worker.state import Executor, WorkerState
from penstock.worker.worker import Worker

# The default number of concurrent calls.
CONCURRENCY = 64


def calls_by(settings: Settings) -> Callable[[WorkerState], Executor]:
    """A factory for the executor of a worker that calls callbacks."""
    try:
        from penstock.callbacks.callback_executor import Calls
    except ImportError as error:
        raise UnsupportedOption(f"callbacks need {error.name}: pip install 'penstock[callbacks]'") from None
    return partial(Calls, settings=settings)


class Runner:
    """One worker that calls callbacks. It opens its own broker on the store, and closes it."""

    def __init__(self, url: str, settings: Settings, concurrency: int = CONCURRENCY) -> None:
        self._url = url
        self._settings = settings
        self._concurrency = concurrency
        self._app: App | None = None
        self._worker: Worker | None = None

    def begin(self) -> None:
        """Connect and start."""
        self._app = App(self._url)
        settings = WorkerSettings(concurrency=self._concurrency)
        self._worker = Worker(self._app, settings, callbacks=calls_by(self._settings))
        self._worker.start()

    def end(self, grace: float) -> None:
        """Stop taking, let calls finish within the grace period, release the others. A second call does nothing."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(grace)
        if self._app is not None:
            self._app.close()

    # the interface `Listener` of penstock.server.serve

    async def start(self) -> str:
        """Start calling callbacks. Returns a line that describes this, for the log."""
        await asyncio.to_thread(self.begin)
        return "callbacks"

    async def stop(self, grace: float) -> None:
        """Stop; see `end`."""
        await asyncio.to_thread(self.end, grace)

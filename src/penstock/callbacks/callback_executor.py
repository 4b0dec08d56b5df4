"""The executor for tasks that have a callback: HTTP calls run on one event loop, each within its task's ttr."""

from __future__ import annotations

import asyncio
import time

from penstock.app.current import Bury, Retry
from penstock.callbacks.allow_list import Refused, Settings, parse
from penstock.callbacks.client import Client
from penstock.callbacks.host_limits import Hosts
from penstock.worker import settlement
from penstock.worker.async_executor import AsyncExecutor
from penstock.worker.running_task import RunningTask
from penstock.worker.state import WorkerState

# The time limit of a call whose task has no ttr.
DEFAULT_SECONDS = 60.0
# max_attempts of a task if neither it nor its tube sets one.
DEFAULT_ATTEMPTS = 20
# How long a task waits here for its host before it is released for other workers.
PARKED_SECONDS = 5.0
# The delay after which a task is retried if too many wait for its host.
POSTPONED_SECONDS = 1.0


class Calls(AsyncExecutor):
    """An executor whose handlers are HTTP calls. Each host gets a few at once; others wait or are released."""

    def __init__(self, state: WorkerState, settings: Settings, client: Client | None = None) -> None:
        self._client = client or Client(settings)
        self._hosts: Hosts[RunningTask] = Hosts(settings.per_host)
        super().__init__(state)

    def room(self) -> int | None:
        """How many more tasks can be taken: what the busiest host allows, minus tasks that are not dispatched yet."""
        return max(0, self._hosts.room(time.monotonic()) - len(self._buffer))

    def _pump(self) -> None:
        self._called = False
        while self._buffer:
            host = _host(self._buffer[0])
            if self._hosts.full(host):
                self._set_aside(host, self._buffer.popleft())
            elif self._state.slots.acquire():
                self._begin(self._buffer.popleft())
            else:
                return

    def _set_aside(self, host: str, item: RunningTask) -> None:
        if not self._state.in_flight.claim(item):
            return  # it waited too long and was released
        now = time.monotonic()
        if self._hosts.park(host, item, now):
            self._state.in_flight.unstarted[item] = now + PARKED_SECONDS
        else:
            self._state.settler.add(item, settlement.postponed(item, POSTPONED_SECONDS))

    def _begin(self, item: RunningTask) -> bool:
        begun = super()._begin(item)
        if begun:
            self._hosts.begin(_host(item))
        return begun

    async def _run(self, item: RunningTask) -> object:
        try:
            return await self._answer(item)
        finally:
            host = _host(item)
            self._hosts.end(host)
            self._unpark(host)

    def _unpark(self, host: str) -> None:
        """Start the next waiting call of the host, skipping calls whose tasks were released."""
        while (parked := self._hosts.unpark(host)) is not None:
            if parked in self._state.in_flight.unstarted:
                self._buffer.appendleft(parked)
                return

    async def _answer(self, item: RunningTask) -> object:
        """Call the callback within the task's ttr. Returns the result; raises Bury or Retry."""
        record = item.record
        limit = DEFAULT_SECONDS if item.ttr is None else item.ttr
        try:
            async with asyncio.timeout(limit):
                return await self._client.call(item.tube.name, record)
        except TimeoutError:
            error = Retry(None, f"callback was not answered within {limit:g} s")
        except Retry as retry:
            error = retry
        if record.options.max_attempts is None and record.attempts >= DEFAULT_ATTEMPTS:
            raise Bury(f"{error.reason} (attempt {record.attempts})")
        raise error

    async def _cancel_all(self) -> None:
        self._hosts.clear()
        await super()._cancel_all()
        await self._client.close()


def _host(item: RunningTask) -> str:
    """The host of the task's callback, or "" if the callback will be refused."""
    url = item.record.options.callback
    assert url is not None
    try:
        return parse(url).host
    except Refused:
        return ""

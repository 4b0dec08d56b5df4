"""The ASGI application: API, events, metrics, description and dashboard on one broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp

from penstock import aio
from penstock.core.results import Event
from penstock.server.auth import Role, Tokens
from penstock.server.http import http_errors, metrics, openapi
from penstock.server.http.audit_trail import AuditTrail
from penstock.server.http.authentication import Authentication, Logins
from penstock.server.http.bulk import Jobs
from penstock.server.http.events import Streams
from penstock.server.http.guard import Guard
from penstock.server.http.history import History
from penstock.server.http.operations import Call, Operation, Server, route
from penstock.server.http.pages import Pages
from penstock.server.http.request_parsing import Options
from penstock.server.http.requests import Watch
from penstock.server.http.routes import OPERATIONS
from penstock.server.http.sampler import Sampler
from penstock.server.http.store_access import Access

log = logging.getLogger("penstock")

# Seconds between checks for idle sessions.
_IDLE_CHECK_SECONDS = 1.0


class HttpApp:
    """The application: `asgi` is what a server runs; `stop` ends streams and waiting calls."""

    def __init__(self, broker: aio.Broker, tokens: Tokens, options: Options) -> None:
        self.access = Access(broker, options.max_sessions)
        self.meter = metrics.Meter()
        self.sampler = Sampler(self.access, self.meter.failed)
        self.streams = Streams(self.access, self.sampler, options.max_streams)
        authentication = Authentication(tokens, Logins(tokens))
        self.jobs = Jobs(self.access)
        self.history = History(self.access)
        self.server = Server(
            self.access, authentication, options, self.meter.failed, self.jobs, AuditTrail(self.access)
        )
        self.pages = Pages(self.server, self.sampler, self.history)
        self.operations = (*OPERATIONS, *self._own_operations())
        self.description = msgspec.json.encode(openapi.document(self.operations))
        self.asgi: ASGIApp = Guard(self._starlette(), options.hosts)

    def stop(self) -> None:
        """End streams and waiting calls; new ones end at once."""
        self.access.stopping.set()

    def _starlette(self) -> Starlette:
        routes: list[BaseRoute] = [route(self.server, operation) for operation in self.operations]
        routes += self.pages.routes()

        async def http_fault(request: Request, error: HTTPException) -> Response:
            return _no_route(self.pages, request, error)

        handlers = {HTTPException: http_fault, Exception: _any_fault}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._live)  # type: ignore[arg-type]

    def _own_operations(self) -> Sequence[Operation]:
        async def events(call: Call, query: Watch) -> Response:
            """Server-sent events: `counters` every second, `task` for each change made through this server."""
            return self.streams.open(query.tube)

        async def prometheus(call: Call) -> Response:
            """Metrics for Prometheus."""
            sample = await self.sampler.read()
            sessions = len(await call.access.broker.sessions())
            text = metrics.exposition(sample, sessions, self.meter)
            return Response(text, media_type=metrics.CONTENT_TYPE)

        async def describe(call: Call) -> Response:
            """This document."""
            return Response(self.description, media_type="application/json")

        return (
            Operation("GET", "/api/events", Role.READ, events, media="text/event-stream"),
            Operation("GET", "/metrics", Role.READ, prometheus, media="text/plain"),
            Operation("GET", "/api/openapi.json", Role.READ, describe, media="application/json"),
        )

    @contextlib.asynccontextmanager
    async def _live(self, app: Starlette) -> AsyncIterator[None]:
        self.access.broker.sync.runtime.tap = self._tap
        self.access.broker.sync.runtime.start_background()
        loops = (
            self.sampler.run(),
            self._end_idle_sessions(),
            self.history.run(),
            self.jobs.run(),
            self.pages.navigation.run(),
        )
        running = [asyncio.ensure_future(each) for each in loops]
        for task in running:
            task.add_done_callback(_must_run)
        try:
            yield
        finally:
            self.stop()
            self.access.broker.sync.runtime.tap = None
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.jobs.close()

    def _tap(self, events: Sequence[Event]) -> None:
        self.meter.tap(events)
        self.streams.tap(events)

    async def _end_idle_sessions(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_CHECK_SECONDS)
            await self.access.end_idle()


def make_app(broker: aio.Broker, tokens: Tokens, options: Options | None = None) -> HttpApp:
    """Make the application, on a broker of the running event loop."""
    return HttpApp(broker, tokens, options or Options())


def _must_run(running: asyncio.Future[None]) -> None:
    """Log a background task that ended before the server."""
    if not running.cancelled():
        message = "a background task of the HTTP server crashed; restart the server: its pages are no longer up to date"
        log.error(message, exc_info=running.exception())


def _no_route(pages: Pages, request: Request, error: HTTPException) -> Response:
    """The response if no route matches: a page for browsers, JSON for programs, which are all callers below /api/."""
    browser = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
    words = _PEOPLE if browser else _PROGRAMS
    refused = http_errors.Refused(error.status_code, words.get(error.status_code, error.detail))
    if error.status_code == 405:
        refused.headers["Allow"] = ", ".join(_methods_here(request))
    return pages.refuse(request, refused) if browser else http_errors.answer(refused)


def _methods_here(request: Request) -> list[str]:
    """The methods of a path; each method is a separate route."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes if isinstance(route, Route) for method in route.methods or ()})


async def _any_fault(request: Request, error: Exception) -> Response:
    return http_errors.answer(error)


_PEOPLE = {404: "there is no such page", 405: "this address is not a page: it is used by a button of the dashboard"}
_PROGRAMS = {
    404: "there is nothing at this path: /api/openapi.json lists all paths",
    405: "this path does not have this method: /api/openapi.json lists them",
}

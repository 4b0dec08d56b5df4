"""An operation of the API is a function. Its signature has the types of request and response, its docstring the text.

Routes and the OpenAPI document are made from one table of operations, so they cannot differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.errors import NoSuchTube
from penstock.server.auth import Role
from penstock.server.http import http_errors, responses
from penstock.server.http.audit_trail import AuditTrail
from penstock.server.http.authentication import Authentication
from penstock.server.http.bulk import Jobs
from penstock.server.http.http_errors import Refused
from penstock.server.http.request_parsing import Options, read_body, read_json, read_query
from penstock.server.http.requests import Body, Query
from penstock.server.http.store_access import Access, HttpSession

T = TypeVar("T")
SESSION = "penstock-session"
# Content types that a page of any site can send without a preflight request.
_FORM_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


@dataclass(frozen=True, slots=True)
class Server:
    """State shared by all requests."""

    access: Access
    authentication: Authentication
    options: Options
    failed: Callable[[Exception], object]
    jobs: Jobs
    audit_trail: AuditTrail


class Call:
    """One request, as passed to an operation."""

    def __init__(self, server: Server, request: Request, session: HttpSession) -> None:
        self.access = server.access
        self.path: dict[str, str] = request.path_params
        self.session = session
        self._request = request

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that may block, and cancel it if the caller disconnects or the server stops."""
        doing = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(
            self._request.receive()
        )  # the body was read, so the next message is the disconnect
        ending = asyncio.ensure_future(self.access.stopping.wait())
        try:
            await asyncio.wait((doing, gone, ending), return_when=asyncio.FIRST_COMPLETED)
            if gone.done() or (ending.done() and not doing.done()):
                doing.cancel()
            return await doing
        except asyncio.CancelledError:
            if gone.done():
                raise ClientDisconnect from None
            if ending.done():
                raise Refused(503, "the server is shutting down: retry later") from None
            raise
        finally:
            for watching in (doing, gone, ending):
                watching.cancel()

    def is_gone(self) -> Awaitable[bool]:
        """Whether the caller has disconnected."""
        return self._request.is_disconnected()


Handler = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Operation:
    """A method and a path, the role that may call it, and its function."""

    method: str
    path: str
    role: Role | None
    handler: Handler
    status: int = 200
    #: The content type, if the response is not a JSON value.
    media: str | None = None

    @property
    def template(self) -> str:
        """The path in the OpenAPI document."""
        return self.path.replace(":path}", "}")

    @property
    def name(self) -> str:
        """The operationId in the OpenAPI document."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """The summary in the OpenAPI document."""
        return (self.handler.__doc__ or "").strip()

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.handler)

    @property
    def body(self) -> type[Body] | None:
        """The type of the request body."""
        return self._hints.get("body")

    @property
    def query(self) -> type[Query] | None:
        """The type of the query parameters."""
        return self._hints.get("query")

    @property
    def answers(self) -> list[Any]:
        """The types of JSON responses; empty if the response is always 204 or a text."""
        if self.media is not None:
            return []
        hint = self._hints["return"]
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        return [kind for kind in kinds if kind is not type(None)]

    @cached_property
    def large(self) -> bool:
        """Whether the operation reads pages of tasks; only few such requests run at a time."""
        return self.method == "GET" and responses.TaskList in self.answers

    @property
    def may_be_empty(self) -> bool:
        """Whether the operation may respond with 204."""
        hint = self._hints["return"]
        return hint is type(None) or type(None) in get_args(hint)


def route(server: Server, operation: Operation) -> Route:
    """The route of an operation."""

    async def endpoint(request: Request) -> Response:
        try:
            if operation.role is not None:
                await server.authentication.need(request, operation.role)
            read = await _read(server, operation, request)
            return await _serve(server, operation, request, read)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            server.failed(error)
            return http_errors.answer(error)

    return Route(operation.path, endpoint, methods=[operation.method], name=operation.name)


async def _serve(server: Server, operation: Operation, request: Request, read: dict[str, Any]) -> Response:
    large = server.access.large_reads if operation.large else contextlib.nullcontext()
    async with large, server.access.session_of(request.headers.get(SESSION)) as session:
        call = Call(server, request, session)
        try:
            answer = await operation.handler(call, **read)
        except NoSuchTube:
            if not server.access.forget(call.path.get("name", "")):
                raise
            answer = await operation.handler(call, **read)
        return await _response(operation, answer)


async def _response(operation: Operation, answer: Any) -> Response:
    if answer is None:
        return Response(status_code=204)
    if isinstance(answer, Response):
        return answer
    session = getattr(answer, "session", None)
    headers = {SESSION: session} if isinstance(session, str) else {}
    body = responses.encoded(answer)
    text = body if isinstance(body, bytes) else await asyncio.to_thread(body)
    return Response(text, operation.status, headers, "application/json")


async def _read(server: Server, operation: Operation, request: Request) -> dict[str, Any]:
    """Parse and validate the query and the body."""
    read: dict[str, Any] = {}
    if operation.query is not None:
        read["query"] = read_query(request.url.query, operation.query)
    elif operation.path.startswith("/api/"):  # monitors add parameters to /metrics and /health
        read_query(request.url.query, Query)
    if operation.body is not None:
        text = await read_body(request, server.options)
        if text:
            _refuse_form(request)
        read["body"] = read_json(text, operation.body)
    return read


def _refuse_form(request: Request) -> None:
    """Refuse content types that a page of any site can send; for JSON, browsers ask this server's permission first."""
    sent = request.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
    browser = "origin" in request.headers or "sec-fetch-site" in request.headers
    if sent in _FORM_TYPES and browser:
        raise Refused(415, f"the body is {sent[:100]}: send application/json")

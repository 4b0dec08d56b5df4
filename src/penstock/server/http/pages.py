"""The dashboard's pages: login, rendering, and error pages. Forms are in `actions`."""

from __future__ import annotations

import mimetypes
import time
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

import penstock
from penstock.errors import BadValue, NoSuchTube
from penstock.server.auth import Role
from penstock.server.http import formatting, http_errors, views
from penstock.server.http.actions import NOTICES, FormRefused, action_routes
from penstock.server.http.authentication import COOKIE, LOGIN_SECONDS, peer_of
from penstock.server.http.history import History
from penstock.server.http.navigation import Navigation
from penstock.server.http.operations import Server
from penstock.server.http.request_parsing import read_form
from penstock.server.http.sampler import Sampler
from penstock.server.http.views import Sources

_TUBE = "/tubes/{name}"
PAGES: dict[str, Callable[..., Awaitable[views.View]]] = {
    "/": views.overview,
    "/handlers": views.handlers,
    "/sessions": views.sessions,
    "/groups": views.groups,
    "/schedules": views.schedules,
    "/callbacks": views.callbacks,
    "/bulk": views.bulk,
    "/audit": views.audit,
    _TUBE + "/put": views.put,
    _TUBE + "/utubes": views.utubes,
    _TUBE + "/groups": views.groups,
    _TUBE + "/tasks/{id:path}": views.task,
    _TUBE: views.tube,
}
# Headings of error pages, by status.
_TITLES = {
    401: "Log in first",
    403: "Not allowed",
    404: "Not found",
    405: "Not a page",
    409: "The state has changed",
    413: "Too large",
    429: "Too many attempts",
    500: "The server failed",
    503: "Not available now",
    507: "The store is full",
}
# Names of static files have no version, so browsers must check for new ones; the files are small.
_STATIC_AGE = "public, max-age=300"


class Pages:
    """The pages of one server."""

    def __init__(self, server: Server, sampler: Sampler, history: History) -> None:
        self._server = server
        self._authentication = server.authentication
        self._sources = Sources(server, sampler, history)
        self.navigation = Navigation(self._sources)

    def routes(self) -> list[BaseRoute]:
        """All pages, forms and files of the dashboard."""
        return [
            Route("/static/{file}", _static, methods=["GET"]),
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/logout", self.logout, methods=["POST"]),
            *action_routes(self._server, self.refuse),
            *(Route(path, self.show(view), methods=["GET"], name=view.__name__) for path, view in PAGES.items()),
        ]

    def show(self, view: Callable[..., Awaitable[views.View]]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a view. Browsers that are not logged in are redirected to the login page."""
        kind = get_type_hints(view)["query"]

        async def page(request: Request) -> Response:
            try:
                role = await self._authentication.role(request)
                if role is None:
                    return _to_login(request)
                query = _query(request, kind)
                shown = await self._view(view, request, query)
                await self.navigation.read()
                return self._render(request, role, *shown)
            except Exception as error:
                return self.refuse(request, error)

        return page

    async def _view(self, view: Callable[..., Awaitable[views.View]], request: Request, query: Any) -> views.View:
        path = request.path_params
        try:
            return await view(self._sources, path, query)
        except NoSuchTube:
            if not self._server.access.forget(path.get("name", "")):
                raise
            return await view(self._sources, path, query)

    def refuse(self, request: Request, error: Exception) -> Response:
        """The page of an error, with the navigation if the browser is logged in."""
        role = self._authentication.browser_role(request)
        if isinstance(error, FormRefused):
            given = dict(error.form.form) | {"problem": str(error)}
            return self._render(request, role, *views.put_form(error.form.tube.stored, given), 400)
        self._server.failed(error)
        status, fault, headers = http_errors.describe(error)
        tube = None if isinstance(error, NoSuchTube) else request.path_params.get("name")
        values = {"status": status, "fault": fault, "title": _TITLES.get(status, "Request failed"), "tube": tube}
        response = self._render(request, role, "error.html", values, status)
        response.headers.update(headers)
        return response

    async def login(self, request: Request) -> Response:
        """Show the login form, or check its token and set the cookie."""
        if self._authentication.open:
            return RedirectResponse("/", 303)
        if request.method == "GET":
            return self._login_page(request, request.query_params.get("next", "/"), "")
        peer = peer_of(request)
        try:
            form = await read_form(request, self._server.options)
        except http_errors.Refused as refused:
            return self.refuse(request, refused)
        waiting = self._authentication.wait(peer)
        cookie = self._authentication.logins.enter(form.get("token", "").strip(), peer)
        if cookie is None and waiting:
            return self.refuse(request, await self._authentication.refuse_peer(peer))
        if cookie is None:
            return self._login_page(request, form.get("next", "/"), "The token is not valid on this server.")
        response = RedirectResponse(formatting.local_path(form.get("next", "/")), 303)
        # A trusted proxy reports whether the browser used https.
        secure = self._server.options.secure or request.url.scheme == "https"
        response.set_cookie(COOKIE, cookie, max_age=LOGIN_SECONDS, httponly=True, samesite="strict", secure=secure)
        return response

    def _login_page(self, request: Request, after: str, problem: str) -> Response:
        values = {"next": formatting.local_path(after), "problem": problem}
        return self._render(request, None, "login.html", values, 403 if problem else 200)

    async def logout(self, request: Request) -> Response:
        """End the login."""
        self._authentication.logins.leave(request.cookies.get(COOKIE, ""))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response

    def _render(
        self, request: Request, role: Role | None, template: str, values: dict[str, Any], status: int = 200
    ) -> Response:
        done, notice = request.query_params.get("done", ""), ""
        if done in NOTICES:
            count = request.query_params.get("count", "")
            notice = NOTICES[done].format(count=count if count.isdecimal() and len(count) < 12 else "")
        auth = self._authentication
        common = {
            "path": request.url.path,
            "role": role,
            "can_operate": role is not None and role >= Role.OPERATE,
            "can_admin": role is not None and role >= Role.ADMIN,
            "open": auth.open,
            "csrf_token": auth.logins.csrf_token("" if auth.open else request.cookies.get(COOKIE, "")),
            "notice": notice,
            "version": penstock.__version__,
            "now": round(time.time(), 3),
            "counts_at": self.navigation.counts if role is not None else {},
        }
        text = formatting.environment().get_template(template).render(common | values)
        return Response(text, status, media_type="text/html")


def _query(request: Request, kind: type) -> Any:
    pairs = dict(parse_qsl(request.url.query, keep_blank_values=True))
    try:
        return msgspec.convert({name: value for name, value in pairs.items() if value}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadValue(f"a parameter in the address of this page is wrong: {error}") from None


def _to_login(request: Request) -> Response:
    return RedirectResponse(f"/login?next={formatting.part(request.url.path)}", 303)


async def _static(request: Request) -> Response:
    name = request.path_params["file"]
    content = formatting.static_file(name)
    if content is None:
        return Response("there is no such file", 404, media_type="text/plain")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(content, 200, {"cache-control": _STATIC_AGE}, kind)

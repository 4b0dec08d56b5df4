"""Who may call, from which origin, and which security headers browsers get."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from penstock.errors import BadValue
from penstock.server.auth import FREE_FAILURES, Failures, Role, Tokens, token_line
from penstock.server.http.authentication import COOKIE
from penstock.server.http.request_parsing import Options
from penstock.server.http.routes import OPERATIONS
from penstock.server.sockets import Tls
from tests.server.certificates import self_signed
from tests.server.http.server_thread import PATIENCE, Serving, serving
from tests.server.http.test_tasks import MAIL, refused


@pytest.fixture
def store_url() -> str:
    return "memory://guarded"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text("".join(token_line(role, f"{role.name.lower()}-token") for role in Role))
    return file


@pytest.fixture
def guarded(store_url: str, tokens: Path) -> Iterator[Serving]:
    """A server that requires tokens."""
    known = Tokens(tokens, "env-token")
    known.failures = Failures(lambda: 0.0)  # the first delay is a second, which a slow machine needs for a request
    with serving(store_url, known) as running:
        yield running


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-token"}


def test_without_a_token_nothing_is_shown(guarded: Serving) -> None:
    for operation in guarded.app.operations:
        path = operation.template.format(name="mail", id="1", address="a", group="g", key="0123456789abcdef")
        answer = guarded.client.request(operation.method, path)
        if operation.role is None:
            assert answer.status_code == 200
        else:
            assert refused(answer) == (401, "Unauthorized"), path
            assert answer.headers["www-authenticate"] == "Bearer"


def test_each_role_may_do_its_part(guarded: Serving) -> None:
    guarded.post(f"{MAIL}/tasks", {"data": 1}, **bearer("admin"))
    for role in Role:
        for operation in OPERATIONS:
            if operation.role is None:
                continue
            path = operation.template.format(name="none", id="1", address="a", group="g", key="0123456789abcdef")
            answer = guarded.client.request(operation.method, path, headers=bearer(role.name.lower()))
            assert (answer.status_code == 403) == (role < operation.role), (role, operation)


def test_the_token_of_the_environment_is_an_admins(guarded: Serving) -> None:
    assert guarded.post("/api/tubes", {"name": "x"}, **bearer("env")).status_code == 201


@pytest.mark.parametrize("header", ["Bearer", "Bearer wrong", "Basic YWRtaW4tdG9rZW4=", "admin-token"])
def test_a_wrong_token_is_refused(guarded: Serving, header: str) -> None:
    assert refused(guarded.get("/api/tubes", authorization=header)) == (401, "Unauthorized")


def test_a_token_in_the_url_is_ignored(guarded: Serving) -> None:
    assert guarded.get("/api/tubes?token=admin-token").status_code == 401
    assert guarded.get("/?token=admin-token").status_code == 303


def test_many_wrong_tokens_are_throttled_and_right_ones_are_not(guarded: Serving) -> None:
    for _ in range(FREE_FAILURES):
        assert guarded.get("/api/tubes", authorization="Bearer wrong").status_code == 401
    answer = guarded.get("/api/tubes", authorization="Bearer wrong")
    assert refused(answer) == (429, "TooManyRequests")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.elapsed.total_seconds() >= 1
    right = guarded.get("/api/tubes", **bearer("admin"))
    assert (right.status_code, right.elapsed.total_seconds() < 1) == (200, True)
    assert guarded.client.post("/login", data={"token": "wrong"}).status_code == 429
    assert guarded.client.post("/login", data={"token": "admin-token"}).status_code == 303


def test_no_token_is_logged(guarded: Serving, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        guarded.get("/api/tubes", **bearer("admin"))
        guarded.get("/api/tubes", authorization="Bearer wrong-token")
        guarded.client.post("/login", data={"token": "admin-token"})
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert [line for line in ours if "-token" in line] == []


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "",
        "[",
        "127.0.0.2",
        "a@b",
        "a@localhost",
        "localhost/x",
        "localhost?x",
        "localhost#x",
        "localhost/api",
        "localhost:80/x",
    ],
)
def test_another_host_is_refused(server: Serving, host: str) -> None:
    answer = server.get("/api/tubes", host=host)
    assert answer.status_code in (400, 421)
    assert "tubes" not in answer.text or answer.status_code == 421


def test_named_hosts_are_accepted(store_url: str) -> None:
    with serving(store_url, options=Options(hosts=("queue.example", "::1"))) as running:
        for host in ("queue.example", "QUEUE.example:443", "[::1]:8080"):
            assert running.get("/api/tubes", host=host).status_code == 200
        assert running.get("/api/tubes", host="localhost").status_code == 421


FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://localhost:1"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_site_changes_nothing(server: Serving, headers: dict[str, str]) -> None:
    for path in (f"{MAIL}/tasks", "/tubes/mail/truncate"):
        answer = server.client.post(path, content=b'{"data": 1}', headers=headers)
        assert refused(answer) == (403, "Forbidden")
    assert server.get("/api/tubes").json() == []


def test_the_api_refuses_a_form_sent_by_a_browser(server: Serving) -> None:
    own = {"origin": server.url, "sec-fetch-site": "same-origin", "content-type": "text/plain"}
    answer = server.client.post(f"{MAIL}/tasks", content=b'{"data": 1}', headers=own)
    assert refused(answer) == (415, "UnsupportedMediaType")


@contextmanager
def log_in(guarded: Serving, name: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.url, timeout=PATIENCE) as browser:
        answer = browser.post("/login", data={"token": f"{name}-token", "next": "/sessions"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/sessions")
        yield browser


def test_a_login_has_a_cookie_that_scripts_and_other_sites_do_not_get(guarded: Serving) -> None:
    with httpx.Client(base_url=guarded.url, timeout=PATIENCE) as browser:
        answer = browser.post("/login", data={"token": "read-token", "next": "//evil.example"})
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "read-token" not in cookie
        assert browser.get("/").status_code == 200
        assert browser.get("/api/tubes").status_code == 200
        browser.post("/logout")
        assert browser.get("/").status_code == 303


def test_a_wrong_login_is_refused(guarded: Serving) -> None:
    answer = guarded.client.post("/login", data={"token": "<b>wrong"})
    assert answer.status_code == 403
    assert "<b>wrong" not in answer.text
    assert "set-cookie" not in answer.headers


def test_a_cookie_alone_changes_nothing(guarded: Serving) -> None:
    guarded.post(f"{MAIL}/tasks", {"data": 1}, **bearer("admin"))
    with log_in(guarded, "admin") as browser:
        assert refused(browser.post(f"{MAIL}/take", json={})) == (403, "Forbidden")
        assert browser.post("/tubes/mail/tasks/1/bury", data={"x": ""}).status_code == 403
        assert browser.post("/tubes/mail/tasks/1/bury", data={"csrf_token": "0" * 64}).status_code == 403
        assert browser.get("/tubes/mail/tasks/1/bury").status_code == 400
        csrf_token = re.findall(r'name="csrf_token" value="(\w+)"', browser.get("/tubes/mail").text)[0]
        with log_in(guarded, "admin") as other:  # the signature of another login is refused
            assert other.post("/tubes/mail/tasks/1/bury", data={"csrf_token": csrf_token}).status_code == 403
        assert browser.post("/tubes/mail/tasks/1/bury", data={"csrf_token": csrf_token}).status_code == 303
        assert browser.post(f"{MAIL}/kick", json={}, headers={"penstock-csrf-token": csrf_token}).json() == {"count": 1}


def test_a_read_token_sees_no_buttons(guarded: Serving) -> None:
    guarded.post(f"{MAIL}/tasks", {"data": 1}, **bearer("admin"))
    with log_in(guarded, "read") as browser:
        page = browser.get("/tubes/mail/tasks/1").text
        assert "Bury" not in page
        assert browser.post("/tubes/mail/tasks/1/bury", data={"csrf_token": "x"}).status_code == 403


def test_removing_a_token_ends_its_logins(guarded: Serving, tokens: Path) -> None:
    with log_in(guarded, "read") as browser:
        tokens.write_text(token_line(Role.ADMIN, "admin-token"))
        assert browser.get("/").status_code == 303
        assert browser.cookies.get(COOKIE)


@pytest.mark.parametrize(
    "path", ["/", "/login", "/tubes/none", "/api/tubes", "/static/live.js", "/nothing", "/metrics"]
)
def test_every_response_has_the_headers(server: Serving, path: str) -> None:
    headers = server.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "server" not in headers


def test_pages_have_no_inline_script_or_style_and_nothing_from_elsewhere() -> None:
    folder = Path(__file__).parents[3] / "src" / "penstock" / "server" / "dashboard"
    for file in (folder / "templates").iterdir():
        text = file.read_text()
        assert not re.search(r"<script(?! src=\"/static/)|<style|\sstyle=|\son\w+=|javascript:|\| *safe", text), file
        assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", text), file


def test_tls(store_url: str, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with serving(store_url, options=Options(secure=True), tls=Tls(certificate, key)) as running:
        assert running.url.startswith("https://")
        assert running.get("/health").json() == {"status": "ok"}


def test_a_bad_certificate_is_refused_before_anything_listens(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("nothing")
    for file in (tmp_path / "x.pem", tmp_path / "missing.pem"):
        with pytest.raises(BadValue, match="TLS certificate .* cannot be used"):
            Tls(file).context()

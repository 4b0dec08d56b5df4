"""Malformed requests: refused with a clear 4xx, and nothing is stored."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from penstock.server.http import http_listener
from penstock.server.http.request_parsing import Options
from tests.server.http.server_thread import PATIENCE, Serving, serving
from tests.server.http.test_tasks import MAIL, refused

SMALL = Options(max_body=2000)


@pytest.fixture
def store_url() -> str:
    """One store is enough: no request here reaches it."""
    return "memory://hostile"


@pytest.fixture
def server(store_url: str) -> Iterator[Serving]:
    with serving(store_url, options=SMALL) as running:
        yield running
        assert running.get("/api/tubes").json() in ([], [{"name": "mail", "kind": "fifottl", "options": {}}])


def test_a_body_over_the_limit_is_refused(server: Serving) -> None:
    assert refused(server.post(f"{MAIL}/tasks", {"data": "x" * 3000})) == (413, "PayloadTooLarge")
    chunks = (b"x" * 500 for _ in range(10))
    assert refused(server.client.post(f"{MAIL}/tasks", content=chunks)) == (413, "PayloadTooLarge")
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), PATIENCE) as other:
        other.sendall(b"POST /api/tubes/mail/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 413")


def test_a_client_that_sends_a_whole_oversized_body_gets_the_answer(server: Serving) -> None:
    body = b"x" * 2**24  # more than the buffers on the way hold
    head = b"POST /api/tubes/mail/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), PATIENCE) as client:
        client.sendall(head + body)
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_arrive_is_refused(store_url: str) -> None:
    with serving(store_url, options=Options(body_seconds=0.5)) as running:
        port = httpx.URL(running.url).port or 0
        # Less than the time that a body has by default.
        with socket.create_connection(("127.0.0.1", port), Options().body_seconds * 0.8) as slow:
            slow.sendall(b"POST /api/tubes/mail/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert slow.recv(100).startswith(b"HTTP/1.1 408")


GOOD = b'{"data": 1, '
BODIES = [
    *(b"{", b"[]", b"null", b'"x"', b"{}", b"\xff\xfe", b'{"data": 1', b'{"data": NaN}', b'{"data": Infinity}'),
    *(
        b'{"data": "\xff"}',
        b'{"data": "\\ud800"}',
        b'{"base64": "?"}',
        GOOD + b'"base64": "AA=="}',
        GOOD + b'"nope": 1}',
    ),
    *(GOOD + b'"pri": ' + pri + b"}" for pri in (b"-1", b"1.5", b"true", b'"1"', b"99999999999")),
    *(GOOD + b'"ttl": ' + ttl + b"}" for ttl in (b"0", b"-1", b"1e308", b"1e400")),
    *(GOOD + b'"timeout": ' + timeout + b"}" for timeout in (b"-1", b"1e9")),
    *(GOOD + b'"delay": -1}', GOOD + b'"utube": "x"}', GOOD + b'"max_attempts": 0}', GOOD + b'"address": ""}'),
    *(GOOD + b'"group": "../x"}', GOOD + b'"callback": "file:///etc/passwd"}'),
    b'{"data": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"nope": ' + b"[" * 1500,
]


def test_a_bad_body_of_a_put_is_refused(server: Serving) -> None:
    for body in BODIES:
        status, _ = refused(server.client.post(f"{MAIL}/tasks", content=body))
        assert 400 <= status < 500
        assert server.get(MAIL).status_code == 404 or server.get(f"{MAIL}/stats").json()["calls"]["put"] == 0


CALLS: list[tuple[str, dict[str, object]]] = [
    ("/take", {"count": 10**9}),
    ("/take", {"count": 0}),
    ("/take", {"count": -1}),
    ("/take", {"timeout": 10**9}),
    ("/take", {"max_pri": -1}),
    ("/kick", {"count": 10**9}),
    ("/kick", {"count": 0}),
    ("/ack", {"ids": []}),
    ("/ack", {"ids": [1.5]}),
    ("/tasks/batch", {"tasks": []}),
    ("/tasks/1/touch", {}),
    ("/tasks/1/touch", {"seconds": 0}),
    ("/tasks/1/fail", {}),
    ("/tasks/1/release", {"delay": -1}),
    ("/tasks/x/ack", {}),
    ("/tasks/-1/ack", {}),
    ("/tasks/1-1/ack", {}),
    ("/tasks/" + "9" * 100 + "/ack", {}),
    ("/groups/..%2Fx/start", {}),
    ("/recover", {"count": 10**9, "elapsed": 0}),
]


def test_a_bad_number_or_id_is_refused(server: Serving) -> None:
    server.post("/api/tubes", {"name": "mail"})
    for path, body in CALLS:
        status, _ = refused(server.post(MAIL + path, body))
        assert 400 <= status < 500


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/tasks", {"data": 1, "pri": -1}, "pri -1 of the body is not accepted: Expected `int` >= 0"),
        ("POST", "/tasks/1/touch", {"seconds": "x"}, 'seconds "x" of the body is not accepted: Expected `float`'),
        ("POST", "/tasks/1/touch", {"seconds": 10**400}, "seconds 1000"),
        ("POST", "/kick", {"cuont": 3}, "it accepts count"),
        ("POST", "/tasks/1/touch", {}, "`seconds`"),
        ("GET", "/tasks?limit=-1", None, "limit -1 of the query is not accepted: Expected `int` >= 1"),
        ("GET", "/tasks?page=2", None, "it accepts status, limit, after"),
        ("GET", "/stats?page=NaN", None, "unknown field `page`; it accepts nothing"),
        ("POST", "/take?timeout=5", {}, "unknown field `timeout`; it accepts nothing"),
    ],
)
def test_a_refusal_names_the_field_and_its_value(
    server: Serving, method: str, path: str, body: object, message: str
) -> None:
    answer = server.client.request(method, MAIL + path, json=body)
    assert refused(answer) == (400, "BadValue")
    assert message in answer.json()["message"]


QUERIES = "limit=-1 limit=0 limit=1000000000 limit=NaN limit=1.5 after=x after=-1 status=z page=NaN x=1".split()


def test_a_bad_query_is_refused(server: Serving) -> None:
    server.post("/api/tubes", {"name": "mail"})
    for query in QUERIES:
        assert refused(server.get(f"{MAIL}/tasks?{query}")) == (400, "BadValue"), query


def test_a_bad_query_of_a_page_is_refused(server: Serving) -> None:
    for query in ("page=NaN", "page=0", "page=-1", "page=1000000000", "order=x", "x=1", "q=" + "x" * 300):
        answer = server.get(f"/?{query}")
        assert answer.status_code == 400, query
        assert "BadValue" in answer.text


NAMES = ["a b", "x" * 300, "..%2Fx", "%00", "%7Bx%7D", "%27%3B%20DROP%20TABLE", "a%0D%0Ab", "%E2%80%AE", "%ff", "-x"]


def test_a_bad_name_is_refused(server: Serving) -> None:
    for name in NAMES:
        status, _ = refused(server.post(f"/api/tubes/{name}/tasks", {"data": 1}))
        assert 400 <= status < 500, name
        assert 400 <= server.get(f"/tubes/{name}").status_code < 500, name


def test_wrong_paths_and_methods_are_refused(server: Serving) -> None:
    assert refused(server.get("/api/nothing")) == (404, "NotFound")
    assert refused(server.client.put(MAIL)) == (405, "MethodNotAllowed")
    assert refused(server.client.request("BREW", MAIL))[0] == 405
    assert server.client.put(MAIL).headers["allow"] == "DELETE, GET, HEAD"
    assert server.get("/logout", accept="text/html").headers["allow"] == "POST"
    assert server.get("/static/..%2Fapp.py").status_code == 404
    assert server.get("/static/%2e%2e/style.css").status_code == 404


def test_a_browser_at_a_wrong_path_gets_a_page_with_links(server: Serving) -> None:
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    for path, status in (("/nothing", 404), ("/tubes/a/b%3Cscript%3Ealert(1)%3C/script%3E", 404), ("/logout", 405)):
        answer = server.get(path, accept=browser)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
        assert '<a href="/">All tubes</a>' in answer.text
        assert "alert" not in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert refused(server.get(path)) == (status, "NotFound" if status == 404 else "MethodNotAllowed")
    assert refused(server.get("/api/nothing", accept=browser)) == (404, "NotFound")  # paths of the API are for programs


def test_bytes_that_are_not_http_end_the_connection(server: Serving) -> None:
    for sent in (
        b"*1\r\n$4\r\nPING\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), PATIENCE) as other:
            other.sendall(sent)
            assert other.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("sent", [b"", b"*1\r\n$4\r\nPING\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_request_that_does_not_arrive_ends_the_connection(
    server: Serving, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_listener, "HEAD_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), PATIENCE) as slow:
        slow.sendall(sent)
        assert slow.recv(100) == b""


def test_a_second_request_that_does_not_arrive_ends_the_connection(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), PATIENCE) as slow:
        slow.sendall(whole)
        assert slow.recv(2000).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(http_listener, "HEAD_SECONDS", 0.3)  # not earlier: the first one has all the time
        slow.sendall(whole + b"GET /he")
        received = b"".join(iter(lambda: slow.recv(2000), b""))  # until it is closed
    assert b"HTTP/1.1 200" in received
    assert received.endswith(b'{"status":"ok"}')


def test_slow_headers_that_arrive_in_time_are_answered(server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), PATIENCE) as slow:
        for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n":
            slow.sendall(bytes([byte]))
        assert slow.recv(2000).startswith(b"HTTP/1.1 200")

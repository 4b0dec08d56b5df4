"""One call over a real connection: the request, what each response does to the task, and which hosts are not called."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from penstock.app.current import Bury, Retry
from penstock.callbacks import client as client_module
from penstock.callbacks.allow_list import Settings, allow_list
from penstock.callbacks.client import Client, Resolve, resolve
from penstock.callbacks.signing import key, verify
from penstock.core import codec
from penstock.core.task import Extra, Record
from tests.callbacks.receiver import Answer, Receiver

SECRET = "correct horse battery staple"


def record(url: str, data: object = "x", address: str | None = "a") -> Record:
    payload = codec.encode(data)
    extra = Extra(callback=url).packed()
    return Record(17, "t", 0, 0, 0, None, 3, 3, 0, 0, None, None, None, 1, None, extra, payload, address=address)


def call(task: Record, *allowed: str, resolver: Resolve = resolve, tls: ssl.SSLContext | None = None) -> object:
    """What one call returns or raises."""

    async def once() -> object:
        settings = Settings(allow_list(allowed or ["127.0.0.1"]), (key(SECRET),))
        client = Client(settings, resolver, tls)
        try:
            return await client.call("mail.ü", task)
        finally:
            await client.close()

    return asyncio.run(once())


def answers(*addresses: str) -> Resolve:
    """A resolver with these answers; the last one is repeated."""
    left = list(addresses)

    async def resolver(host: str, port: int) -> list[str]:
        return (left.pop(0) if len(left) > 1 else left[0]).split()

    return resolver


def test_the_data_is_posted_with_signed_headers() -> None:
    with Receiver() as receiver:
        call(record(f"{receiver.url}?a=b", {"to": "ada"}))
        got = receiver.next()
    assert (got.path, got.body) == ("/hook?a=b", b'{"to":"ada"}')
    assert {name: got.headers[name] for name in got.headers if name.startswith(("Penstock-", "Content", "Host"))} == {
        "Host": f"127.0.0.1:{receiver.port}",
        "Content-Type": "application/json",
        "Content-Length": "12",
        "Penstock-Tube": "mail.%C3%BC",
        "Penstock-Id": "17",
        "Penstock-Attempt": "3",
    }
    assert got.headers["webhook-id"] == "mail%2E%C3%BC:17"
    assert verify(SECRET, got.headers, got.body, now=time.time(), url=f"{receiver.url}?a=b")


def test_bytes_are_posted_unchanged() -> None:
    with Receiver() as receiver:
        call(record(receiver.url, b"\0\xff"))
        got = receiver.next()
    assert (got.body, got.headers["Content-Type"]) == (b"\0\xff", "application/octet-stream")


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Answer(204), None),
        (Answer(200, b'{"n": 1}', {"Content-Type": "application/json; charset=utf-8"}), {"n": 1}),
        (Answer(201, b"[]", {"Content-Type": "application/problem+json"}), []),
        (Answer(200, b"fine", {"Content-Type": "text/plain"}), "fine"),
        (Answer(200, b"{broken", {"Content-Type": "application/json"}), b"{broken"),
        (Answer(200, b"\xff", {"Content-Type": "text/plain"}), b"\xff"),
        (Answer(299, b"\0\1"), b"\0\1"),
    ],
)
def test_a_successful_response_is_the_result(answer: Answer, result: object) -> None:
    with Receiver(lambda got: answer) as receiver:
        assert call(record(receiver.url)) == result
        assert call(record(receiver.url, address=None)) is None


@pytest.mark.parametrize(
    ("answer", "delay", "reason"),
    [
        (Answer(500, b"out of\n order"), None, "callback was answered with 500: out of order"),
        (Answer(404), None, "callback was answered with 404"),
        (Answer(429, b"", {"Retry-After": "7"}), 7, "callback was answered with 429"),
        (Answer(503, b"", {"Retry-After": "9" * 30}), 3600, "callback was answered with 503"),
        (Answer(503, b"", {"Retry-After": "-1"}), None, "callback was answered with 503"),
        (Answer(500, b"", {"Retry-After": "7"}), None, "callback was answered with 500"),
    ],
)
def test_an_error_response_is_retried(answer: Answer, delay: float | None, reason: str) -> None:
    with Receiver(lambda got: answer) as receiver, pytest.raises(Retry) as retry:
        call(record(receiver.url))
    assert (retry.value.delay, retry.value.reason) == (delay, reason)


def test_a_response_gone_buries_the_task() -> None:
    with Receiver(lambda got: Answer(410, b"no such list")) as receiver, pytest.raises(Bury) as bury:
        call(record(receiver.url))
    assert bury.value.reason == "callback was answered with 410: no such list"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with Receiver() as elsewhere, Receiver() as receiver:
        receiver.answer = lambda got: Answer(status, b"", {"Location": elsewhere.url})
        with pytest.raises(Retry) as retry:
            call(record(receiver.url))
        assert retry.value.reason == f"callback was answered with {status}: redirects are not followed"
        assert elsewhere.got.empty()


def test_a_response_over_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER", 1000)
    with Receiver(lambda got: Answer(200, b"x" * 1001)) as receiver:
        assert call(record(receiver.url, address=None)) is None  # nobody asks for the result
        with pytest.raises(Bury, match="its result is over 1000 bytes"):
            call(record(receiver.url))
        receiver.answer = lambda got: Answer(200, b"x" * 1000)
        assert call(record(receiver.url)) == b"x" * 1000


def test_an_unreachable_host_is_retried() -> None:
    with socket.socket() as silent:  # it does not listen, and no other program can get its port meanwhile
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(Retry) as retry:
            call(record(f"http://127.0.0.1:{silent.getsockname()[1]}/hook"))
    assert (retry.value.reason or "").startswith("callback failed: ConnectError")
    for name in ("nowhere.invalid", f"{'x' * 64}.invalid"):
        with pytest.raises(Retry) as retry:
            call(record(f"http://{name}/"), "*")
        assert f"{name} cannot be resolved" in (retry.value.reason or "")


def test_a_name_is_resolved_once_and_the_checked_address_is_called() -> None:
    with Receiver() as receiver:
        url = f"http://hooks.example.org:{receiver.port}/hook"
        rebinding = answers("127.0.0.1", "169.254.169.254")
        call(record(url), "hooks.example.org", "127.0.0.1", resolver=rebinding)
        assert receiver.next().headers["Host"] == f"hooks.example.org:{receiver.port}"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "8.8.8.8 127.0.0.1"],
)
def test_a_listed_name_at_an_internal_address_is_refused(address: str) -> None:
    with Receiver() as receiver:
        with pytest.raises(Bury, match="which is not public"):
            call(record(f"http://hooks.example.org:{receiver.port}/"), "hooks.example.org", resolver=answers(address))
        assert receiver.got.empty()


def test_a_name_that_resolves_differently_the_second_time_is_checked_again() -> None:
    with Receiver() as receiver:
        resolver = answers("192.0.2.1 127.0.0.1", "127.0.0.1")
        url = f"http://hooks.example.org:{receiver.port}/"
        for _ in range(2):
            with pytest.raises(Bury, match="is not public"):
                call(record(url), "hooks.example.org", resolver=resolver)
        assert receiver.got.empty()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]", "0.0.0.0", "169.254.169.254", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
     "100.64.0.1", "192.0.0.192", "2130706433", "0x7f000001", "127.1", "localhost", "localhost.", "user@127.0.0.1"],
)  # fmt: skip
def test_every_form_of_our_own_address_is_refused_when_all_names_are_allowed(host: str) -> None:
    with Receiver() as receiver:
        with pytest.raises(Bury, match="^callback refused: "):
            call(record(f"http://{host}:{receiver.port}/"), "*")
        assert receiver.got.empty()


def certificate(folder: Path, name: str) -> ssl.SSLContext:
    """A server's TLS context with a certificate for that name; the file is also the authority."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
         f"subjectAltName=DNS:{name}", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def test_tls_verifies_the_name_of_the_host(tmp_path: Path) -> None:
    server = certificate(tmp_path, "hooks.example.org")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with Receiver(lambda got: Answer(200, b'"ok"', {"Content-Type": "application/json"}), server) as receiver:

        def reach(name: str, tls: ssl.SSLContext | None) -> object:
            task = record(f"https://{name}:{receiver.port}/")
            return call(task, name, "127.0.0.1", resolver=answers("127.0.0.1"), tls=tls)

        assert reach("hooks.example.org", trusting) == "ok"
        with pytest.raises(Retry) as retry:
            reach("other.example.org", trusting)
        assert "CERTIFICATE_VERIFY_FAILED" in (retry.value.reason or "")
        with pytest.raises(Retry):
            reach("hooks.example.org", None)  # it is not signed by a known authority

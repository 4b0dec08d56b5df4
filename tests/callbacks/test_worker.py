"""`penstock worker --callbacks` and `penstock serve --callbacks`, as an operator starts them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.callbacks.signing import verify
from tests.callbacks.receiver import PATIENCE, Answer, Receiver
from tests.support.shell import Shell
from tests.support.threads import until

SECRET = "a secret for the tests"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/queue.db?durability=relaxed")
    shell.environment["PENSTOCK_CALLBACK_SECRET"] = SECRET
    return shell


@contextmanager
def worker(shell: Shell, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process, killed after the test if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", "--callbacks", *words], env=shell.environment, cwd=shell.folder,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_worker_makes_callbacks_and_stops_on_request(shell: Shell) -> None:
    with Receiver(lambda got: Answer(200, b"ok", {"Content-Type": "text/plain"})) as receiver:
        shell("put", "mail", '{"n": 1}', "--callback", receiver.url, "--address", "first", "--delay", "0.1")
        with worker(shell, "--callback-allow", "127.0.0.1") as process:
            got = receiver.next()
            assert verify(SECRET, got.headers, got.body, now=float(got.headers["webhook-timestamp"]))
            assert shell.json("wait", "mail", "first", "--timeout", "60")["result"] == "ok"
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0


def test_a_server_calls_callbacks_too(shell: Shell) -> None:
    words = [sys.executable, "-m", "penstock", "serve", "--resp", "127.0.0.1:0", "--callbacks"]
    with (
        Receiver() as receiver,
        subprocess.Popen(
            [*words, "--callback-allow", "127.0.0.1"], env=shell.environment, stdout=subprocess.PIPE, text=True
        ) as server,
    ):
        assert server.stdout is not None
        assert [server.stdout.readline() for _ in range(2)][1] == "penstock serves callbacks\n"
        shell("put", "mail", "x", "--callback", receiver.url)
        assert receiver.next().body == b'"x"'
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert "has no allowed hosts" in shell.refused("serve", "--callbacks")


def test_a_killed_worker_leaves_its_calls_to_the_next(shell: Shell) -> None:
    answering = threading.Event()
    with Receiver() as receiver, penstock.connect(shell.url) as broker:
        receiver.answer = lambda got: Answer(200 if answering.wait(PATIENCE) else 500)
        tube = broker.create_tube("mail", callback=receiver.url)
        tube.put("x")
        with worker(shell, "--callback-allow", "127.0.0.1") as process:
            assert receiver.next().headers["Penstock-Attempt"] == "1"
            process.kill()
        answering.set()
        with worker(shell, "--callback-allow", "127.0.0.0/8"):
            assert receiver.next().headers["Penstock-Attempt"] == "2"
            until(lambda: len(tube) == 0, PATIENCE)


def test_a_worker_does_not_start_without_a_list_or_a_secret(shell: Shell) -> None:
    assert shell.refused("worker", "--callbacks").startswith("--callbacks has no allowed hosts")
    allowed = ("--callback-allow", "hooks.example.org")
    assert "allowed host 'http://x'" in shell.refused("worker", "--callbacks", "--callback-allow", "http://x")
    shell.environment["PENSTOCK_CALLBACK_SECRET"] = "short"
    assert "a callback secret has 5 bytes" in shell.refused("worker", "--callbacks", *allowed)
    del shell.environment["PENSTOCK_CALLBACK_SECRET"]
    assert "need a secret" in shell.refused("worker", "--callbacks", *allowed)
    assert "cannot be read" in shell.refused("worker", "--callbacks", *allowed, "--callback-secret-file", "nowhere")


def test_each_receiver_has_its_own_secret(shell: Shell) -> None:
    own = "known to this receiver alone"
    file = shell.folder / "secrets"
    with Receiver() as first, Receiver() as second:
        file.write_text(f"{SECRET}\n@127.0.0.1:{first.port} {own}\n")
        file.chmod(0o600)
        allowed = [word for port in (first.port, second.port) for word in ("--callback-allow", f"127.0.0.1:{port}")]
        for receiver in (first, second):
            shell("put", "mail", "1", "--callback", receiver.url)
        with worker(shell, *allowed, "--callback-secret-file", str(file)):
            for receiver, right, wrong in ((first, own, SECRET), (second, SECRET, own)):
                got = receiver.next()
                now = float(got.headers["webhook-timestamp"])
                assert verify(right, got.headers, got.body, now=now, url=receiver.url)
                assert not verify(wrong, got.headers, got.body, now=now)


def test_short_secrets_are_refused_and_readable_files_give_warnings(shell: Shell) -> None:
    file = shell.folder / "secrets"
    words = ("worker", "--callbacks", "--callback-allow", "a.example", "--callback-secret-file", str(file))
    for text, message in (
        ("@a.example", "needs a host and a secret"),
        ("@a.example short", "a callback secret has 5 bytes"),
        ("@a@b a secret that is long enough", "is not a name, address or network"),
    ):
        file.write_text(text)
        file.chmod(0o600)
        assert message in shell.refused(*words)
    file.chmod(0o644)
    stderr = shell.run(*words).stderr
    assert f"penstock: warning: other users can read the callback secrets in {file}: chmod 600 {file}\n" in stderr

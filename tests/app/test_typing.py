"""Type checkers accept put options in `.put` and report wrong arguments. Runs mypy as users do."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.app.arguments import PUT_OPTIONS
from penstock.app.handler import Handler
from penstock.app.put_signature import Put
from tests.support.peer import environment

# mypy must reject each line with a comment, with that text in its message, and accept all others.
SNIPPET = """
import penstock

app = penstock.App()
far = app.handler("resize", tube="images")
far.put("photo.png", width=80, delay=10)
count_of_all: int = len(app.put("resize", "photo.png", width=80).result())


@app.task(tube="mail", ttr=30, backoff=penstock.Backoff())
def send(to: str, subject: str = "hi") -> int:
    return 1


@app.task
async def fetch(url: str) -> bytes:
    return b""


@app.cron("*/5 * * * *", timezone="Europe/Berlin")
def tick() -> None: ...


@app.task(batch=10)
def store(rows: list[int]) -> None: ...


send.put("ada", subject="hello")
send.options(pri=1, max_attempts=3).put(to="ada")
send.put_many([("ada",), {"to": "bob"}], pri=1)
send.options(delay=10).put("ada", subject="hello")
send.put("ada", delay=10)
send.put("ada", "hello", delay=10, pri=1)
send.put("ada", subject="hello", delay=10)
send.put(to="ada", subject="hello", at=None, max_attempts=3)
tick.put(delay=3)
store.put(7, delay=3)
send.bind(object()).put("ada", delay=10)
later: int = send.put("ada", subject="hello", ttl=60).result()
count: int = send.put("ada").result(10)
body: bytes = fetch.put("x").result()
tick.put()
sent: int = send.call("ada", subject="hello").options(delay=5).put().result()
send.call(subject="after another one").without_result()
send.options(pri=1).call("ada").put()
called: int = send("ada")
taken = app.broker.tube("mail").take(0)
if taken is not None:
    send(**taken.data)
status: str = send.put("ada").wait(1).status


async def main() -> None:
    body: bytes = await fetch("x")
    body = await (await fetch.aio.put("x")).result(10)
    await send.options(delay=10).aio.put("ada", subject="hello")
    await send.aio.put("ada", delay=10)
    await send.aio.put("ada", subject="hello", delay=10)
    await send.aio.put(1)  # call-overload
    await send.aio.put(1, delay=10)  # call-overload
    await send.aio.put("ada", nope=1)  # call-overload
    other: str = await (await send.aio.put("ada")).result()  # assignment


send.put(1)  # call-overload
send.put()  # call-overload
send.put("ada", subject=3)  # call-overload
send.put("ada", nope=3)  # call-overload
send.put(1, delay=3)  # call-overload
send.put("ada", 3, delay=3)  # call-overload
send.put("ada", delay="soon")  # call-overload
send.put(1, subject="hello", delay=3)  # call-overload
send.put("ada", subject="hello", delay="soon")  # call-overload
send.put("ada", capacity=3)  # call-overload
tick.put(1, delay=3)  # call-overload
store.put("row", delay=3)  # call-overload
send.options(delay="soon")  # arg-type
send.options(delay=10).put(1)  # arg-type
send.options(delay=10).put("ada", nope=1)  # call-arg
send.options(capacity=3)  # call-arg
send.call(1)  # call-overload
send.call(subject=3)  # call-overload
send.call("ada").options(capacity=3)  # call-arg
wrong: str = send.put("ada").result()  # assignment
send(1)  # arg-type
tick.put(1)  # call-overload
app.task(rocket=True)  # call-overload
"""


@pytest.mark.timeout(900)
def test_type_checkers_report_wrong_arguments(tmp_path: Path) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), cwd=tmp_path)
    found = re.findall(r"snippet\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    lines = enumerate(SNIPPET.splitlines(), 1)
    wanted = [(str(number), code) for number, line in lines for code in line.partition("  # ")[2].split()]
    assert found == wanted, done.stdout + done.stderr


def test_help_shows_what_a_verb_returns() -> None:
    shown = {verb: inspect.signature(getattr(penstock.Tube, verb)) for verb in ("put", "put_many", "take", "ack")}
    returned = {verb: found.return_annotation for verb, found in shown.items()}
    assert returned == {"put": "Task", "put_many": "list[Task]", "take": "Task | None", "ack": "None"}
    assert penstock.Tube.put.__annotations__["return"] == "Task"
    assert "-> 'Task'" in pydoc.render_doc(penstock.Tube.put)


def test_every_put_option_has_an_overload_with_keyword_arguments() -> None:
    keyword_only = re.findall(r"\*, (\w+):", inspect.getsource(Put))
    assert sorted(keyword_only) == sorted(PUT_OPTIONS)


def test_help_of_a_handler_s_put_shows_the_handle() -> None:
    assert "-> 'Handle[R]'" in pydoc.render_doc(Handler.put)

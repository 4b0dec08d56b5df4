"""Run the sh blocks of pages that are not read from top to bottom, and the examples in the help of every command.

A page with `<!-- the commands of this page are run -->` is for test_examples. Each sh block of another page starts in
its own folder, with the program that the page has shown; servers and workers run until the block ends, on free
ports.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

import penstock
from penstock.app.schedules import declared
from penstock.cli.commands import COMMANDS
from penstock.cli.main import cli
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from tests.docs.commands import BEGIN, examples
from tests.docs.pages import PAGES, ROOT, title
from tests.docs.test_examples import COMMANDS_ARE_RUN, Block, blocks_of
from tests.server.certificates import self_signed
from tests.servers import present, running
from tests.servers.base import find
from tests.support.shell import Shell

# Commands that run until they are stopped, and what they log when they are up.
_STAYS = re.compile(r"(penstock( --url \S+)? (serve|worker)|uvicorn|flask|litestar)( |$)")
_UP = re.compile(r"worker on|penstock serves|running on", re.IGNORECASE)
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=0\.0\.0\.0:)\d+|(?<=-p )\d+")
_NEEDS_SHELL = re.compile(r"[|>$;*]")

# Programs that blocks use, and their Debian packages.
TOOLS = {"jq ": "jq", "redis-cli ": "redis-tools", "curl ": "curl"}

SHOP = """
import penstock
app = penstock.App()
app.task(tube="mail", name="send")(print)
app.task(tube="urgent", name="hurry")(print)
@app.every(3600, tube="mail")
def make_report() -> None: ...
"""


def prepare(folder: Path) -> None:
    """Create the store and the files that the examples name."""
    (folder / "shop.py").write_text(SHOP)
    (folder / "letter.json").write_text('{"to": "ada@example.org"}')
    (folder / "urls.txt").write_text("http://example.org/1\nhttp://example.org/2\n")
    (folder / "ssh").write_text("#!/bin/sh\nshift\nPENSTOCK_URL=sqlite:///far.db exec $@\n")
    (folder / "ssh").chmod(0o755)
    (folder / ".config/fish/completions").mkdir(parents=True, exist_ok=True)
    with penstock.connect(f"sqlite:///{folder}/jobs.db") as broker:
        mail = broker.tube("mail", max_attempts=3)
        mail.put_many(f"letter {n}" for n in range(1, 8))
        mail.put("letter 8", address="order-7")
        mail.bury(7, "for the examples")
        broker.tube("crawl").put("page")
        broker.tube("urgent")
        broker.tube("orders", "reliable").put_many([{"item": 7}, {"item": 8}])
        broker.tube("hooks")
        render = broker.tube("render")
        render.group("page-7").put("frame")
        for address in ("page-6", "page-7"):
            render.put("page", address=address)
            render.take(0).ack(result="done")  # type: ignore[union-attr]
        app = penstock.App()
        app.every(3600, tube="mail", name="shop.make_report")(lambda: None)
        schedule_status.save(broker.tube(SCHEDULE_TUBE), [declared(app.schedules)[0].record(mail)])


class Machine:
    """A folder, stores and free ports, and the programs that were started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: dict[str, str] = {}
        self._urls: dict[str, str] = {}
        self._exports = ""
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._session: str | None = None  # of the last take
        self._shell = Shell(folder, "sqlite:///jobs.db")
        self._shell.environment |= {
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PENSTOCK_CALLBACK_SECRET": "secret of the tests, long enough",
            "PENSTOCK_LOCKS": str(folder / "locks"),
            "HOME": str(folder),
            **{name: self._port(name) for name in ("UVICORN_PORT", "FLASK_RUN_PORT", "LITESTAR_PORT")},
        }

    def reset(self) -> None:
        """Begin again, with an empty folder."""
        self.stop()
        self._session = None
        self._urls.clear()
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        prepare(self.folder)

    def run(self, line: str) -> None:
        """Run a line and wait for its end, or start a server; an export applies to the lines after it."""
        line = self._here(line)
        for tool, package in TOOLS.items():
            if tool in line:
                present(partial(find, tool.strip(), package, ()))
        if line.startswith(("export ", "unset ")):
            self._exports += f"{line}; "
        elif _STAYS.match(line):
            self._start(line)
        elif line.startswith("penstock top"):
            words = [] if "--updates" in line else ["--updates", "1", "--interval", "0.1"]
            self._shell.on_terminal(*shlex.split(line)[1:], *words)
        elif line.startswith("penstock ") and not _NEEDS_SHELL.search(line):
            done = self._shell.run(*shlex.split(line, comments=True)[1:])
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            if line.startswith("penstock take"):
                self._session = re.findall(r"^session +(\S+)", done.stdout, re.MULTILINE)[0]
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", self._exports + line], cwd=self.folder, env=self._shell.environment,
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def stop(self) -> None:
        """Stop what was started, newest first; workers and servers must exit with 0."""
        ended = []
        for line, process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
            try:
                ended.append((line, process.wait(60)))
            except subprocess.TimeoutExpired:
                process.kill()
                ended.append((line, process.wait()))
        self._started.clear()
        assert [(line, code) for line, code in ended if line.startswith("penstock") and code] == []

    def _start(self, line: str) -> None:
        log = self.folder / f"log {len(self._started)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._exports}exec {line}"],
                cwd=self.folder,
                env=self._shell.environment,
                stdout=out,
                stderr=out,
            )
        self._started.append((line, process))
        deadline = time.monotonic() + 60
        while not _UP.search(log.read_text()):
            assert process.poll() is None, f"{line}\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{line}\n{log.read_text()}"
            time.sleep(0.05)  # only its log shows that it is up

    def _here(self, line: str) -> str:
        """Returns the line with its ports, stores and sessions replaced by those of this machine."""
        line = _PORT.sub(lambda port: self._port(port[0]), line)
        if re.match(r"penstock.* serve", line) and "--http" not in line and "--resp" not in line:
            line += f" --http 127.0.0.1:{self._port(line)}"  # the default port may be in use
        for text, server in (("postgresql", "postgres"), ("redis://localhost", "redis")):
            if text in line and server not in self._urls:
                self._urls[server] = running(server).fresh_url()
        line = line.replace("postgresql%3A%2F%2F%2Fjobs", quote(self._urls.get("postgres", ""), safe=""))
        line = re.sub(r"postgresql://\S*/jobs", lambda _: shlex.quote(self._urls["postgres"]), line)
        line = line.replace("redis://localhost/0", self._urls.get("redis", "")).replace("?pool=", "&pool=")
        if "--session" in line:
            session = self._session or self._shell.json("take", "mail")["session"]
            line = re.sub(r"(?<=--session )\S+", session, line)
        return line

    def _port(self, name: str) -> str:
        if name not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self._ports[name] = str(probe.getsockname()[1])
        return self._ports[name]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    folder = tmp_path / "reader"
    folder.mkdir()
    made = Machine(folder)
    yield made
    made.stop()


def sh_blocks() -> Iterator[tuple[str, Block]]:
    """Yields each block that is run here, with its place in the pages."""
    for page in PAGES:
        text = page.read_text()
        if COMMANDS_ARE_RUN not in text:
            for block in blocks_of(title(page), text.partition(BEGIN)[0]):  # the rest is generated from the help
                if block.kind == "sh" and block.not_run is None:
                    yield f"{block.page}:{block.line}", block


BLOCKS = dict(sh_blocks())


@pytest.mark.parametrize("where", BLOCKS)
def test_a_block_of_commands_runs(where: str, machine: Machine) -> None:
    block = BLOCKS[where]
    programs = {one or other for one, other in re.findall(r"(\w+):(?:app|web|tasks)\b|python (\w+)\.py", block.code)}
    for name in programs:
        (machine.folder / f"{name}.py").write_text(program(block, name))
    if programs:
        machine.run("unset PENSTOCK_URL")  # the programs name their own stores
    else:
        prepare(machine.folder)
    if "tokens" in block.code:
        machine.run("penstock token tokens --role admin --name someone")
    if "queue.pem" in block.code:
        for made, name in zip(self_signed(machine.folder), ("queue.pem", "queue.key"), strict=True):
            made.rename(machine.folder / name)
    if "--pool" in block.code:
        machine.run(PUT_INTO_POOL)
    if "while " in block.code:
        (machine.folder / "send-mail").symlink_to("/bin/cat")
        machine.run("penstock truncate mail --yes")
        machine.run("penstock put mail hello")
        machine.run(block.code.replace("--timeout 5", "--timeout 0"))
        return
    for line in filter(None, block.code.splitlines()):
        if line.startswith("penstock move"):
            machine.reset()  # the lines are alternatives
            if "move postgresql" in line:
                machine.run("penstock --url postgresql:///jobs put mail hello")
        machine.run(line)


def program(block: Block, name: str) -> str:
    """The program of that name: an example, or what the page has shown so far."""
    example = ROOT / "examples" / f"{name}.py"
    if example.exists():
        return example.read_text()
    shown = blocks_of(block.page, (ROOT / block.page).read_text())
    return "\n\n".join(each.code for each in shown if each.kind == "python" and each.line < block.line)


# Their own tests run them: tests/amqp, tests/cli/test_bench.py, and make demo.
ELSEWHERE = ("bridge", "bench", "demo")
# Commands whose examples belong together. Those of others are alternatives: each has its own store.
SEQUENCES = ("serve", "token", "import")
PUT_INTO_POOL = "penstock --url redis://localhost/0 --pool postgresql:///jobs put mail hello"
# What is done before the examples of a command.
BEFORE = {
    "create": ["rm jobs.db"],
    "import": ["penstock export mail --out mail.jsonl", "gzip --keep mail.jsonl", "penstock drop mail --yes"],
    "rebuild": [PUT_INTO_POOL],
}


@pytest.mark.parametrize("command", [name for names in COMMANDS.values() for name in names])
def test_the_examples_of_a_command_run(command: str, machine: Machine) -> None:
    lines = [re.split(r" {3,}", line)[0] for line in examples(command)]
    assert lines, "a command without an example"
    for number, line in enumerate(lines):
        if command in ELSEWHERE:
            cli.make_context("penstock", shlex.split(line, comments=True)[1:]).close()
            continue
        if number == 0 or command not in SEQUENCES:
            machine.reset()
            for each in BEFORE.get(command, ()):
                machine.run(each)
        machine.run("penstock completion zsh" if "zsh" in line else line)  # bash cannot read it

"""Runs the commands of deploy/ and docs/deploy.md: a worker as its unit starts it, backup and restore."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

import penstock
from penstock.core.task import Task
from tests.deploy.test_deploy_files import DEPLOY, ROOT, exec_start
from tests.servers import running
from tests.servers.redis import Redis
from tests.support.shell import SOURCE
from tests.support.threads import until

PAGE = (ROOT / "docs/deploy.md").read_text()


def blocks(section: str) -> list[str]:
    """The commands under a heading of the page: those that back up, and those that restore."""
    text = PAGE.split(f"### {section}\n")[1].split("\n#")[0]
    return re.findall(r"```sh\n(.*?)```", text, re.DOTALL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_worker_as_its_unit_starts_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import penstock\napp = penstock.App()\napp.task(tube='t', name='say')(print)\n")
    settings = dict(
        line.split("=", 1) for line in (DEPLOY / "systemd/penstock.env").read_text().splitlines() if line[0] != "#"
    )
    port, url = free_port(), settings["PENSTOCK_URL"].replace("/var/lib/penstock", str(tmp_path))
    words = exec_start(DEPLOY / "systemd/penstock-worker@.service").replace("${PENSTOCK_APP}", settings["PENSTOCK_APP"])
    command = [sys.executable, "-m", "penstock", *shlex.split(words.replace("%i", str(port)))[1:]]
    environment = {**os.environ, "PENSTOCK_URL": url, "PYTHONPATH": SOURCE, "PENSTOCK_LOCKS": str(tmp_path / "locks")}
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        until(lambda: health(port) == 200)
    finally:
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log


def health(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return int(answer.status)
    except OSError:
        return 0


@contextmanager
def scenario(url: str) -> Iterator[tuple[penstock.Broker, Task]]:
    """A store with three tasks, one of them taken."""
    with penstock.connect(url) as broker:
        tube = broker.tube("mail", ttr=600)
        tube.put_many(["a", "b", "c"])
        task = tube.take(0)
        assert task is not None
        yield broker, task


def run(commands: str, folder: Path, **variables: object) -> str:
    """Run a block of the page."""
    found = {name: str(value) for name, value in variables.items()}
    environment = {
        **os.environ, "PYTHONPATH": SOURCE, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **found,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def backed_up(url: str, back_up: str, folder: Path, **variables: object) -> Task:
    """Back up while a program works, which continues afterwards. Returns the task that it holds."""
    with scenario(url) as (broker, task):
        run(back_up, folder, **variables)
        task.ack()
        broker.tube("mail").put("later")
    return task


def check_restored(url: str, task: Task) -> None:
    """Assert that everything was restored, and that older leases are refused."""
    with penstock.connect(url) as broker:
        tube = broker.tube("mail")
        assert broker.check() == []
        assert [each.data for each in tube.tasks()] == ["a", "b", "c"]
        tube.release_all()
        assert [tube.take(0).data for _ in range(3)] == ["a", "b", "c"]  # type: ignore[union-attr]
        with pytest.raises(penstock.NotTaken):
            tube.ack(task)


def test_sqlite(tmp_path: Path) -> None:
    back_up, restore = blocks("SQLite")
    url, backup = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "backup"
    backup.mkdir()
    task = backed_up(url, back_up, tmp_path, BACKUP=backup)
    assert run(restore, tmp_path, BACKUP=backup) == "no problems found\n"
    check_restored(url, task)


def test_postgres(tmp_path: Path) -> None:
    back_up, restore = blocks("PostgreSQL")
    server = running("postgres").url
    name = f"t{uuid4().hex[:12]}"
    url = server.rpartition("/")[0] + f"/{name}"
    run(f'psql --quiet "{server}" -c "CREATE DATABASE {name}"', tmp_path)
    task = backed_up(url, back_up, tmp_path, BACKUP=tmp_path, DATABASE=url)
    assert run(restore, tmp_path, BACKUP=tmp_path, DATABASE=url) == "no problems found\n"
    check_restored(url, task)
    run(f'psql --quiet "{server}" -c "DROP DATABASE {name} WITH (FORCE)"', tmp_path)


def test_mariadb(tmp_path: Path) -> None:
    back_up, restore = blocks("MariaDB, MySQL")
    port = running("mariadb").port
    (tmp_path / "my.cnf").write_text(f"[client]\nhost=127.0.0.1\nport={port}\nuser=root\nskip-ssl\n")
    run('mariadb --defaults-file=my.cnf -e "CREATE DATABASE jobs"', tmp_path)
    url = f"mysql://root@127.0.0.1:{port}/jobs"
    task = backed_up(url, back_up, tmp_path, BACKUP=tmp_path)
    assert run(restore, tmp_path, BACKUP=tmp_path, DATABASE=url) == "no problems found\n"
    check_restored(url, task)
    run('mariadb --defaults-file=my.cnf -e "DROP DATABASE jobs"', tmp_path)


def test_redis(tmp_path: Path) -> None:
    back_up, restore = blocks("Redis")
    server, port = Redis(), free_port()
    try:
        server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")  # otherwise it waits for other replicas to join
        task = backed_up(server.url, back_up, tmp_path, BACKUP=tmp_path, REDIS_URL=server.url)
        assert run(restore, tmp_path, BACKUP=tmp_path, PORT=port) == "PONG\nOK\nno problems found\n"
        check_restored(f"redis://127.0.0.1:{port}/0", task)
    finally:
        subprocess.run(["redis-cli", "-p", str(port), "SHUTDOWN", "NOSAVE"], check=False, capture_output=True)
        server.stop()

"""Stores and clients work without the system calls that only Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# macOS has neither eventfd nor open-file-description locks; Windows also lacks the rest.
LACKS = {
    "macOS": """
import fcntl
for name in [name for name in dir(fcntl) if name.startswith("F_OFD")]:
    delattr(fcntl, name)
for name in ("eventfd", "eventfd_read", "eventfd_write", "EFD_NONBLOCK", "EFD_CLOEXEC"):
    delattr(os, name)
""",
    "Windows": """
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("eventfd", "eventfd_read", "eventfd_write", "getuid", "register_at_fork", "O_NONBLOCK", "O_CLOEXEC"):
    delattr(os, name)
for name in ("poll", "epoll", "POLLIN", "POLLOUT"):
    delattr(select, name)
""",
}
HEAD = """
import asyncio, os, select, sys, sysconfig, threading
import apsw, click, psycopg, pymysql, redis, rich.console  # their own needs are not ours
sysconfig.get_config_vars()
{lacks}
sys.platform = {platform!r}
import penstock
"""
STORE = """
with penstock.connect({url!r}) as broker:
    tube = broker.tube("t")
    waited = []
    taker = threading.Thread(target=lambda: waited.append(tube.take(20)))
    taker.start()
    tube.put({{"n": 1}}, address="a")
    taker.join(20)
    tube.ack(waited[0], "done")
    assert tube.wait("a", 5).result == "done"
    tube.put("x", delay=0.2)
    assert tube.take(10).data == "x"
    assert tube.take(0.05) is None
print("works")
"""
WORKER = """
import jobs, penstock.aio
from penstock.cli.main import main

async def results():
    async with await penstock.aio.connect() as broker:
        tube = await broker.tube("default")
        return [(await tube.wait(address, 5)).result for address in ("double", "triple")]

jobs.double.options(address="double").put(2)
jobs.triple.options(address="triple").put(2)
sys.argv = ["penstock", "worker", "jobs:app", "--max-tasks", "2"]
main()
assert asyncio.run(results()) == [4, 6]
print("works")
"""
JOBS = """
import penstock
app = penstock.App()

@app.task
def double(n: int) -> int:
    return 2 * n

@app.task
async def triple(n: int) -> int:
    return 3 * n
"""
APART = """
import penstock
app = penstock.App()

@app.task(executor="process")
def apart() -> None: ...
"""


def ran(program: str, system: str, url: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    platform = {"macOS": "darwin", "Windows": "win32"}[system]
    text = (HEAD + program).format(lacks=LACKS[system], platform=platform, url=url)
    command = [sys.executable, "-c", text]
    environment = {**os.environ, "PENSTOCK_URL": url}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder, env=environment)


@pytest.mark.parametrize("system", LACKS)
def test_a_store_works_without_what_other_systems_lack(store_url: str, system: str) -> None:
    if store_url.startswith("memory"):
        store_url = "memory://"
    done = ran(STORE, system, store_url)
    assert (done.stdout, done.returncode) == ("works\n", 0), done.stderr


@pytest.mark.parametrize("system", LACKS)
def test_a_worker_runs_without_what_other_systems_lack(tmp_path: Path, system: str) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    done = ran(WORKER, system, f"sqlite:///{tmp_path}/queue.db", tmp_path)
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["works"], 0), done.stderr


def test_a_worker_on_windows_refuses_handlers_in_processes(tmp_path: Path) -> None:
    (tmp_path / "apart.py").write_text(APART)
    program = 'from penstock.cli.main import main; sys.argv = ["penstock", "worker", "apart:app"]; main()'
    done = ran(program, "Windows", f"sqlite:///{tmp_path}/queue.db", tmp_path)
    assert done.returncode == 1
    assert 'executor="process" does not work on Windows' in done.stderr, done.stderr

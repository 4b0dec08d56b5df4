"""Stores and clients work without the system calls that only Linux has."""

from __future__ import annotations

import subprocess
import sys

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
PROGRAM = """
import asyncio, os, select, sys, sysconfig, threading
import apsw, psycopg, pymysql, redis  # their own needs are not ours
sysconfig.get_config_vars()
{lacks}
sys.platform = {platform!r}
import penstock
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


@pytest.mark.parametrize("system", LACKS)
def test_a_store_works_without_what_other_systems_lack(store_url: str, system: str) -> None:
    if store_url.startswith("memory"):
        store_url = "memory://"
    platform = {"macOS": "darwin", "Windows": "win32"}[system]
    program = PROGRAM.format(lacks=LACKS[system], platform=platform, url=store_url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("works\n", 0), done.stderr

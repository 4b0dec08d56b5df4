"""What every test server has: found or installed, started, stopped, killed, and started again on its data."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from tests.servers import guard

START_SECONDS = 200


class Missing(Exception):
    """The server's program is not on this machine and cannot be installed by this user."""


class Server(ABC):
    """One server process with a folder of its own. `start` after `kill` finds the data that was there."""

    package = ""
    program = ""
    folders: tuple[str, ...] = ()
    user: str | None = None  # to run as, when we are root and the program refuses that

    def __init__(self) -> None:
        self.binary = self.find()
        self.folder = Path(mkdtemp(prefix=f"penstock-{self.program}-"))
        self._ports = held_ports()
        self.port = int(self._ports[0].getsockname()[1])
        if sys.platform != "linux":
            self._let_go()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        if self.user is not None and os.getuid() == 0:
            shutil.chown(self.folder, self.user, self.user)
        self.prepare()
        self.start()

    def find(self) -> str:
        """The path of the server's program."""
        return find(self.program, self.package, self.folders)

    @abstractmethod
    def prepare(self) -> None:
        """Lay out the data folder."""

    @abstractmethod
    def command(self) -> list[str]:
        """What to run, in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves now."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, as a client of its own would be told."""

    @abstractmethod
    def fresh_url(self) -> str:
        """The URL of a store on this server that nobody used before."""

    def empty_url(self) -> str:
        """The URL of an empty store, which may be that of an earlier test, emptied, where a new one is slow to make."""
        return self.fresh_url()

    @property
    def nodes(self) -> Sequence[Server]:
        """All servers that it consists of, itself first: start it last, it answers when all do."""
        return [self]

    def start(self) -> None:
        """Run it and wait until it answers; tried again while what is left of a killed one still holds the data."""
        for _ in range(600 if self._killed else 0):
            with contextlib.suppress(RuntimeError):
                return self._start()
            time.sleep(0.1)
        return self._start()

    def _start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, user=self._run_as())
        guard.started(self._process.pid, self.folder)
        self.await_answer()

    def await_answer(self) -> None:
        """Wait until it answers; what it logged is the error when it does not."""
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.binary} did not start:\n{(self.folder / 'log').read_text()[-4000:]}")
            time.sleep(0.02)  # a server says nowhere that it is up but by answering

    def kill(self) -> None:
        """As a power cut does it, but for the disk's own memory: with the processes that it started."""
        self._killed = True
        started = self._children()
        self._end(signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _children(self) -> list[int]:
        """As far as the kernel tells: what is not killed with it only delays its next start."""
        if self._process is None:
            return []
        listed = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []

    def restart(self) -> None:
        """Kill it and start it again on its data."""
        self.kill()
        self.start()

    def restart_some(self, dice: random.Random) -> None:
        """A restart; of a cluster, of a part of it."""
        self.restart()

    def stop(self) -> None:
        """End it and remove its folder."""
        self._end(signal.SIGTERM)
        self._let_go()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _let_go(self) -> None:
        for port in self._ports:
            port.close()

    def run(self, *command: str) -> None:
        """Run a helper program as the server's user."""
        done = subprocess.run(command, capture_output=True, text=True, check=False, user=self._run_as())
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")

    def _run_as(self) -> str | None:
        return self.user if os.getuid() == 0 else None

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._killed = True
            self._process.kill()
            self._process.wait()
        guard.ended(self._process.pid)
        self._process = None


def held_ports() -> tuple[socket.socket, socket.socket]:
    """Sockets on a port that nobody uses, and on the one 10,000 above, which Redis Cluster also takes.

    While they are open, Linux gives these ports to nobody who asks for any, also while the server is down; the server,
    which asks for its own, may listen beside a socket that does not. On other systems it may not.
    """
    while True:
        probe, above = socket.socket(), socket.socket()
        with contextlib.suppress(OSError, OverflowError):
            probe.bind(("127.0.0.1", 0))
            above.bind(("127.0.0.1", probe.getsockname()[1] + 10_000))
            for held in (probe, above):  # only now: it would also have been bound beside another's
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return probe, above
        probe.close()
        above.close()


def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def find(program: str, package: str, folders: tuple[str, ...]) -> str:
    """The program's path; its Debian package is installed when it is missing and we may."""
    found = _look(program, folders)
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False, capture_output=True)
        install = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "-qq", package]
        subprocess.run(install, env=quiet, check=False, capture_output=True)
        found = _look(program, folders)
    if found is None:
        raise Missing(f"{program} is missing: install it, on Debian with `apt-get install {package}`")
    return found


def given(program: str) -> str | None:
    """The program in the folder that PENSTOCK_PROGRAMS names: `python -m tests.matrix` has other versions there."""
    path = Path(os.environ.get("PENSTOCK_PROGRAMS", "")) / program
    return str(path) if path.is_absolute() and path.exists() else None


def _look(program: str, folders: tuple[str, ...]) -> str | None:
    if path := given(program):
        return path
    for pattern in folders:
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True):
            if (folder / program).exists():
                return str(folder / program)
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")

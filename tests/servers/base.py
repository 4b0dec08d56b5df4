"""What every test server can do: find or install itself, start, stop, be killed, and restart on its data."""

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

from tests.servers import server_guard

START_SECONDS = 200


class Missing(Exception):
    """The server's program is not on this machine and this user cannot install it."""


class Server(ABC):
    """One server process with its own folder. `start` after `kill` finds the old data."""

    package = ""
    program = ""
    folders: tuple[str, ...] = ()
    user: str | None = None  # the user to run as, if we are root and the program refuses root

    def __init__(self) -> None:
        self.binary = self.find()
        self.folder = Path(mkdtemp(prefix=f"penstock-{self.program}-"))
        self._ports = held_ports()
        self.port = int(self._ports[0].getsockname()[1])
        if sys.platform != "linux":
            self._release_ports()
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
        """Create the data folder."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command to run, in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it answers now."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Its URL for clients."""

    @abstractmethod
    def fresh_url(self) -> str:
        """The URL of a new store on this server."""

    def empty_url(self) -> str:
        """The URL of an empty store; an earlier test's, emptied, where creating one is slow."""
        return self.fresh_url()

    @property
    def nodes(self) -> Sequence[Server]:
        """All servers of which it consists, itself first. Start it last: it answers when all do."""
        return [self]

    def start(self) -> None:
        """Start it and wait until it answers. Retries while remains of a killed one still lock the data."""
        for _ in range(600 if self._killed else 0):
            with contextlib.suppress(RuntimeError):
                return self._start()
            time.sleep(0.1)
        return self._start()

    def _start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, user=self._run_as())
        server_guard.started(self._process.pid, self.folder)
        self.await_answer()

    def await_answer(self) -> None:
        """Wait until it answers; if it does not, raise with its log."""
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.binary} did not start:\n{(self.folder / 'log').read_text()[-4000:]}")
            time.sleep(0.02)  # only an answer shows that a server is up

    def kill(self) -> None:
        """Kill it with its child processes, like a power cut that keeps the disk cache."""
        self._killed = True
        started = self._children()
        self._end(signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _children(self) -> list[int]:
        """Its child processes, as far as the kernel lists them: one that is missed only delays the next start."""
        if self._process is None:
            return []
        listed = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []

    def restart(self) -> None:
        """Kill it and start it again on its data."""
        self.kill()
        self.start()

    def restart_some(self, dice: random.Random) -> None:
        """Restart it; of a cluster, a part of it."""
        self.restart()

    def stop(self) -> None:
        """End it and remove its folder."""
        self._end(signal.SIGTERM)
        self._release_ports()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _release_ports(self) -> None:
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
        server_guard.ended(self._process.pid)
        self._process = None


def held_ports() -> tuple[socket.socket, socket.socket]:
    """Sockets on an unused port, and on the port 10,000 above it, which Redis Cluster also uses.

    While they are open, Linux gives these ports to no other program that asks for any free port, even while the server
    is down; the server, which asks for this port, may listen next to a socket that does not. Other systems may refuse.
    """
    while True:
        probe, above = socket.socket(), socket.socket()
        with contextlib.suppress(OSError, OverflowError):
            probe.bind(("127.0.0.1", 0))
            above.bind(("127.0.0.1", probe.getsockname()[1] + 10_000))
            for held in (probe, above):  # only now: it could also have been bound next to another's socket
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return probe, above
        probe.close()
        above.close()


def listens(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def find(program: str, package: str, folders: tuple[str, ...]) -> str:
    """The program's path; installs its Debian package if it is missing and this user may."""
    found = _which(program, folders)
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False, capture_output=True)
        install = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "-qq", package]
        subprocess.run(install, env=quiet, check=False, capture_output=True)
        found = _which(program, folders)
    if found is None:
        raise Missing(f"{program} is missing: install it, on Debian with `apt-get install {package}`")
    return found


def given(program: str) -> str | None:
    """The program in the folder of PENSTOCK_PROGRAMS, where `python -m tests.matrix` has other versions."""
    path = Path(os.environ.get("PENSTOCK_PROGRAMS", "")) / program
    return str(path) if path.is_absolute() and path.exists() else None


def _which(program: str, folders: tuple[str, ...]) -> str | None:
    if path := given(program):
        return path
    for pattern in folders:
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True):
            if (folder / program).exists():
                return str(folder / program)
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")

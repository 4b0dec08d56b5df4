"""A private RabbitMQ node, with its own Erlang port mapper."""

from __future__ import annotations

import os
import subprocess

from tests.servers import server_guard
from tests.servers.base import Server, find, held_ports, listens


class RabbitMQ(Server):
    """One node on free ports, with all its files in its folder. Not a store: for `penstock bridge`."""

    package = "rabbitmq-server"
    program = "rabbitmq-server"
    # Not Debian's wrapper, which changes the user and writes to /var/log.
    folders = ("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",)

    def prepare(self) -> None:
        self._beside = held_ports()  # of the port mapper, and of the distribution
        mapper = str(self._beside[0].getsockname()[1])
        for name in ("home", "mnesia", "logs"):
            (self.folder / name).mkdir()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "node.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "disk_free_limit.absolute = 1MB\n"
            "log.console = true\nlog.console.level = warning\nlog.file = false\n"
        )
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "ERL_EPMD_PORT": mapper,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"penstock{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._beside[1].getsockname()[1]),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "node.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the Erlang VM, so that a kill hits the VM
            "ERL_CRASH_DUMP": "/dev/null",
        }
        with (self.folder / "logs" / "epmd").open("ab") as log:
            # In the foreground: otherwise the node starts one that outlives it.
            command = [find("epmd", "erlang-base", ()), "-port", mapper, "-address", "127.0.0.1"]
            self._mapper = subprocess.Popen(command, stdout=log, stderr=log)
        server_guard.started(self._mapper.pid, self.folder)

    def command(self) -> list[str]:
        return ["env", "-i", *(f"{name}={value}" for name, value in self.environment.items()), self.binary]

    def answers(self) -> bool:
        return listens(self.port)

    def stop(self) -> None:
        super().stop()
        self._mapper.kill()
        self._mapper.wait()
        server_guard.ended(self._mapper.pid)
        for port in self._beside:
            port.close()

    @property
    def url(self) -> str:
        """The node, for its first user."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def fresh_url(self) -> str:
        return self.url

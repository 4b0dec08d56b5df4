"""A proxy between clients and a server that breaks on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.servers.base import Server
from tests.servers.redis import RedisCluster


class Proxy:
    """A proxy for a server, or for all nodes of a cluster.

    `lose_answers`: the next answers, and their connections, are lost; `losses`: how many of them, so that a client that
    reconnects is answered. `on_request` is called before client data is forwarded; if it raises OSError, the connection
    ends.
    """

    def __init__(self, *ports: int) -> None:
        self.lose_answers = False
        self.losses = 0
        self.lost_answers = 0
        self.refuse = False
        self.on_request: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        self.ports = [int(listener.getsockname()[1]) for listener in self._listeners]
        self.port = self.ports[0]
        for listener, port in zip(self._listeners, ports, strict=True):
            threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()

    def cut(self) -> None:
        """Close every connection."""
        while self._pairs:
            for end in self._pairs.pop():
                _close(end)

    def close(self) -> None:
        for listener in self._listeners:
            _close(listener)
        self.cut()

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", port))
            except OSError:  # it is being restarted
                client.close()
                continue
            self._pairs.append((client, server))
            for source, target, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, target, answers), daemon=True).start()

    def _loses_answers(self) -> bool:
        with self._lock:  # answers of several connections arrive at once
            lost = self.lose_answers or self.losses > 0
            self.losses = max(self.losses - lost, 0)
            self.lost_answers += lost
            return lost

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if answers and self._loses_answers():
                    source.settimeout(0.05)  # the request was applied, however many answers it has
                    while source.recv(65536):
                        pass
                if not answers:
                    self.on_request()
                target.sendall(data)
        except OSError:
            pass
        _close(source)
        _close(target)


@contextmanager
def proxied(server: Server) -> Iterator[Proxy]:
    """A proxy for a server, or for each node of a cluster, which then announces the proxy's ports."""
    proxy = Proxy(*(node.port for node in server.nodes))
    if isinstance(server, RedisCluster):
        server.announce(proxy.ports)
    try:
        yield proxy
    finally:
        if isinstance(server, RedisCluster):
            server.announce([0] * len(proxy.ports))
        proxy.close()


def _close(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()

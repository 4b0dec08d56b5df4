"""Idle connections, slow readers and hostile bytes next to normal clients; a small run of `load`."""

from __future__ import annotations

from tests.server.load import BOTH, Load, problems
from tests.server.server_process import Serve

IDLE = 250  # of each protocol


def test_many_connections_delay_no_others_and_memory_is_bounded(url: str) -> None:
    with Serve(url, *BOTH) as server:
        load = Load(server, IDLE)
        seen = load.run(3)
        assert problems(seen) == []
        assert seen.connections == 2 * IDLE + 30
        assert seen.honest > 0
        assert server.client().ping() is True
        assert server.stop() == (0, "")

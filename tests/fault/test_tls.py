"""Encrypted connections to servers that accept no others."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import penstock
from tests.servers.tls import TlsMariadb, TlsPostgres, TlsRedis


@pytest.mark.parametrize("store", [TlsPostgres, TlsMariadb, TlsRedis])
def test_a_server_that_accepts_only_tls(store: type[TlsPostgres | TlsMariadb | TlsRedis]) -> None:
    with ExitStack() as ending:
        server = store()
        ending.callback(server.stop)
        with pytest.raises(penstock.StoreUnavailable):
            penstock.connect(server.doubting_url())
        for times, url in enumerate(server.trusting_urls(), start=1):
            with penstock.connect(url) as broker:
                tube = broker.tube("t")
                tube.put("x")
                task = tube.take(0)
                assert task is not None
                task.ack()
                assert (tube.stats().calls.ack, broker.check()) == (times, [])

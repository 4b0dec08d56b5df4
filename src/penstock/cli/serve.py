"""`penstock serve`: the store for other programs, by the Redis protocol and HTTP."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from penstock.bridge import Bridge
from penstock.broker import Broker
from penstock.server.address import Address
from penstock.server.auth import Tokens
from penstock.server.resp.listener import RespListener
from penstock.server.resp.service import Service
from penstock.server.serve import Listener, Mount
from penstock.server.serve import serve as run

RESP_ADDRESS = "127.0.0.1:7379"


@click.command()
@click.option("--resp", metavar="HOST:PORT", help=f"Speak the Redis protocol there, such as {RESP_ADDRESS}.")
@click.option("--token-file", type=click.Path(path_type=Path), help="Tokens with roles; PENSTOCK_TOKEN is one admin's.")
@click.pass_obj
def serve(url: str, resp: str | None, token_file: Path | None) -> None:
    """Serve the store to other programs and hosts.

    \b
    penstock --url sqlite:///jobs.db serve --resp 127.0.0.1:7379
    redis-cli -p 7379 MQ.PUSH mail hello

    Without a token only loopback addresses are listened on. SIGTERM ends it: what was asked is answered, and what its
    connections held is ready again.
    """
    tokens = Tokens(token_file, os.environ.get("PENSTOCK_TOKEN"))
    mounts = [_resp(resp or RESP_ADDRESS, tokens)]
    asyncio.run(run(url, mounts, _announce))


def _resp(text: str, tokens: Tokens) -> Mount:
    address = Address("--resp", text)
    address.must_be_guarded(tokens.required)

    def mount(broker: Broker, bridge: Bridge) -> Listener:
        return RespListener(Service(broker, bridge, tokens), address)

    return mount


def _announce(urls: list[str]) -> None:
    for url in urls:
        click.echo(f"penstock serves {url}")

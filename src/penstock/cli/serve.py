"""`penstock serve`: the store for other programs, by the Redis protocol and HTTP, and for people in a browser."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from penstock.bridge import Bridge
from penstock.broker import Broker
from penstock.errors import BadValue
from penstock.server.address import Address
from penstock.server.auth import Tokens
from penstock.server.resp.listener import RespListener
from penstock.server.resp.service import Service
from penstock.server.serve import Listener, Mount
from penstock.server.serve import serve as run

HTTP_ADDRESS = "127.0.0.1:8080"
RESP_ADDRESS = "127.0.0.1:7379"


@click.command()
@click.option("--http", metavar="HOST:PORT", help=f"HTTP API and dashboard; {HTTP_ADDRESS} when nothing is given.")
@click.option("--resp", metavar="HOST:PORT", help=f"The Redis protocol; {RESP_ADDRESS} when nothing is given.")
@click.option("--token-file", type=click.Path(path_type=Path), help="Tokens with roles; PENSTOCK_TOKEN is one admin's.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="HTTP: a name it is called by; may be repeated.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="HTTP: the certificate, in PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="HTTP: its key, if not in the same file.")
@click.option("--proxies", default="", metavar="ADDRESSES", help="HTTP: proxies whose X-Forwarded-For is believed.")
@click.pass_obj
def serve(
    url: str, http: str | None, resp: str | None, token_file: Path | None, hosts: tuple[str, ...],
    tls_cert: Path | None, tls_key: Path | None, proxies: str,
) -> None:  # fmt: skip
    """Serve the store to other programs and hosts.

    \b
    penstock --url sqlite:///jobs.db serve
    penstock serve --resp 127.0.0.1:7379        that alone
    redis-cli -p 7379 MQ.PUSH mail hello

    Without a token only loopback addresses are listened on. SIGTERM ends it: what was asked is answered, and what its
    connections held is ready again.
    """
    if http is None and resp is None:
        http, resp = HTTP_ADDRESS, RESP_ADDRESS
    tokens = Tokens(token_file, os.environ.get("PENSTOCK_TOKEN"))
    mounts: list[Mount] = []
    if http is not None:
        mounts.append(_http(_address("--http", http, tokens), tokens, hosts, (tls_cert, tls_key), proxies))
    if resp is not None:
        mounts.append(_resp(_address("--resp", resp, tokens), tokens))
    asyncio.run(run(url, mounts, _announce))


def _address(option: str, text: str, tokens: Tokens) -> Address:
    address = Address(option, text)
    address.must_be_guarded(tokens.required)
    return address


def _resp(address: Address, tokens: Tokens) -> Mount:
    def mount(broker: Broker, bridge: Bridge) -> Listener:
        return RespListener(Service(broker, bridge, tokens), address)

    return mount


def _http(
    address: Address, tokens: Tokens, hosts: tuple[str, ...], tls: tuple[Path | None, Path | None], proxies: str
) -> Mount:
    try:
        from penstock.server.http.listener import Tls, http_listener
        from penstock.server.http.options import LOOPBACK, Options
    except ImportError as error:
        raise BadValue(f"--http needs a package more ({error}): pip install 'penstock[server]'") from error

    certificate, key = tls
    options = Options(hosts=(*LOOPBACK, address.host, *hosts), secure=certificate is not None)
    secret = None if certificate is None else Tls(certificate, key)

    def mount(broker: Broker, bridge: Bridge) -> Listener:
        return http_listener(broker, bridge, address, tokens, options, secret, proxies)

    return mount


def _announce(urls: list[str]) -> None:
    for url in urls:
        click.echo(f"penstock serves {url}")

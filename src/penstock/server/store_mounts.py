"""Builds the listeners from the options of `penstock serve`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import aio
from penstock.aio.executor import BatchExecutor
from penstock.broker.broker import Broker
from penstock.errors import BadValue
from penstock.server.auth import Tokens
from penstock.server.resp.resp_listener import RespListener
from penstock.server.resp.service import Service
from penstock.server.serve import Listener, Mount
from penstock.server.sockets import Address, Tls

HTTP_ADDRESS = "127.0.0.1:8080"
RESP_ADDRESS = "127.0.0.1:7379"


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the HTTP listener besides its address."""

    hosts: tuple[str, ...] = ()
    proxies: str = ""


def mounts(http: str | None, resp: str | None, tokens: Tokens, tls: Tls | None, web: HttpSettings) -> list[Mount]:
    """The requested listeners, by default both.

    Raises BadValue if one of them could be reached from other hosts without a token.
    """
    if http is None and resp is None:
        http, resp = HTTP_ADDRESS, RESP_ADDRESS
    made = []
    if http is not None:
        made.append(_http(_address("--http", http, tokens), tokens, tls, web))
    if resp is not None:
        made.append(_resp(_address("--resp", resp, tokens), tokens, tls))
    return made


def _address(option: str, text: str, tokens: Tokens) -> Address:
    address = Address(option, text)
    address.must_be_guarded(tokens.required)
    return address


def _resp(address: Address, tokens: Tokens, tls: Tls | None) -> Mount:
    context = None if tls is None else tls.context()

    def mount(broker: Broker, executor: BatchExecutor) -> Listener:
        return RespListener(Service(broker, executor, tokens), address, tls=context)

    return mount


def _http(address: Address, tokens: Tokens, tls: Tls | None, web: HttpSettings) -> Mount:
    try:
        from penstock.server.http.http_app import make_app
        from penstock.server.http.http_listener import HttpListener
        from penstock.server.http.request_parsing import LOOPBACK, Options
    except ImportError as error:
        raise BadValue(f"--http needs an extra package ({error}): pip install 'penstock[server]'") from error

    options = Options(hosts=(*LOOPBACK, address.host, *web.hosts), secure=tls is not None)

    def mount(broker: Broker, executor: BatchExecutor) -> Listener:
        app = make_app(aio.Broker(executor, broker), tokens, options)
        return HttpListener(app, address, tls=tls, proxies=web.proxies)

    return mount

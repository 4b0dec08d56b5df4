"""`penstock serve`: serves the store over HTTP and the Redis protocol; `penstock token`: makes a token for it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from penstock.cli import output
from penstock.cli.callback_options import callback_options, callback_settings
from penstock.errors import BadValue
from penstock.server.auth import Role, make_token, read_tokens, token_line

# The shortest PENSTOCK_TOKEN without a warning: random text of this length has at least 80 bits.
SHORT_TOKEN = 20


@click.command()
@click.option("--http", metavar="HOST:PORT", help="HTTP API and dashboard; 127.0.0.1:8080 if neither is given.")
@click.option("--resp", metavar="HOST:PORT", help="The Redis protocol; 127.0.0.1:7379 if neither is given.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="Tokens with roles; PENSTOCK_TOKEN is one admin token."
)
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="HTTP: a host name of this server; repeatable.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="TLS for both: the certificate, in PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key, if not in the same file.")
@click.option("--proxies", default="", metavar="ADDRESSES", help="HTTP: proxies whose X-Forwarded-For is trusted.")
@callback_options
@output.json_option
@click.pass_obj
def serve(
    url: str, http: str | None, resp: str | None, token_file: Path | None, hosts: tuple[str, ...],
    tls_cert: Path | None, tls_key: Path | None, proxies: str, callbacks: bool, allowed: tuple[str, ...],
    secret_file: Path | None, per_host: int, as_json: bool,
) -> None:  # fmt: skip
    """Serve the store to other programs and hosts.

    \b
    penstock --url sqlite:///jobs.db serve
    penstock serve --resp 127.0.0.1:7379        only the Redis protocol
    penstock serve --callbacks --callback-allow hooks.example.org
    redis-cli -p 7379 MQ.PUSH mail hello

    Without a token it listens on loopback addresses only. SIGTERM stops it: calls in flight are answered, and tasks
    that its connections held are ready again. It prints its addresses once it listens; with --json as one line.
    """
    # Imported here, because they take longer to load than most other commands to run.
    import asyncio

    from penstock.callbacks.callback_runner import Runner
    from penstock.server.auth import Tokens
    from penstock.server.serve import serve as run
    from penstock.server.sockets import tls_of
    from penstock.server.store_mounts import HttpSettings, mounts

    single = os.environ.get("PENSTOCK_TOKEN")
    tokens = Tokens(token_file, single)
    if token_file is not None:
        output.warn_if_readable(token_file, "the hashes of tokens")
    if single and len(single) < SHORT_TOKEN:
        length = len(single)
        output.warn(f"PENSTOCK_TOKEN has {length} characters and may be guessed: make one with openssl rand -hex 32")
    chosen = mounts(http, resp, tokens, tls_of(tls_cert, tls_key), HttpSettings(hosts, proxies))
    calling = callback_settings(callbacks, allowed, secret_file, per_host)
    if calling is not None:
        runner = Runner(url, calling)
        chosen.append(lambda broker, executor: runner)
    asyncio.run(run(url, chosen, _announce_json if as_json else _announce))


def _announce(urls: list[str]) -> None:
    for url in urls:
        click.echo(f"penstock serves {url}")


def _announce_json(urls: list[str]) -> None:
    output.as_json({"serves": urls})


ROLES = [role.name.lower() for role in Role]


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--role", type=click.Choice(ROLES), default="operate", show_default=True, help="The role of the token.")
@click.option("--name", default="", help="A name to recognise its line in FILE.")
@output.json_option
def token(file: Path, role: str, name: str, as_json: bool) -> None:
    """Make a token, add its hash to FILE, and print it.

    The token cannot be shown again.

    \b
    penstock token tokens --role read --name grafana
    penstock serve --token-file tokens

    To revoke a token, remove its line from the file; a running server notices.
    """
    if not name.isprintable():
        raise BadValue("the name has a line break or another invisible character: remove it")
    if file.exists() and file.stat().st_size:
        read_tokens(file)  # refuses a file that is not a token file
    made = make_token()
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as lines:
            lines.write(token_line(Role[role.upper()], made, name))
    except OSError as error:
        raise BadValue(f"{file} cannot be written ({error.strerror}): choose another FILE") from None
    if as_json:
        output.as_json({"token": made, "role": role, "name": name, "file": str(file)})
    else:
        click.echo(made)

"""`penstock token`: a new token for the server's token file, shown once."""

from __future__ import annotations

import os
from pathlib import Path

import click

from penstock.cli import output
from penstock.errors import BadValue
from penstock.server.auth import Role, make_token, read_tokens, token_line

ROLES = [role.name.lower() for role in Role]


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--role", type=click.Choice(ROLES), default="operate", show_default=True, help="Its role.")
@click.option("--name", default="", help="A name that shows which line to remove.")
@output.json_option
def token(file: Path, role: str, name: str, as_json: bool) -> None:
    """Make a token, add its hash to FILE, and print it.

    It cannot be shown again.

    \b
    penstock token tokens --role read --name grafana
    penstock serve --token-file tokens

    To revoke it, remove its line from the file; a running server notices.
    """
    if not name.isprintable():
        raise BadValue("the name has a line break or another character that cannot be seen: leave it out")
    if file.exists() and file.stat().st_size:
        read_tokens(file)  # nothing is added to a file that is something else
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

"""`penstock completion`: commands and options, completed by the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from penstock.cli import output


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@output.json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print the completion script of a shell.

    \b
    eval "$(penstock completion bash)"                     in ~/.bashrc
    eval "$(penstock completion zsh)"                      in ~/.zshrc
    penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    script = made(context.find_root().command, {}, "penstock", "_PENSTOCK_COMPLETE").source()
    if as_json:
        output.as_json({"shell": shell, "script": script})
    else:
        click.echo(script)

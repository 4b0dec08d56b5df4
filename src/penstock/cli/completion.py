"""`penstock completion`: commands and options, completed by the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands and options.

    \b
    eval "$(penstock completion bash)"                     in ~/.bashrc
    eval "$(penstock completion zsh)"                      in ~/.zshrc
    penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "penstock", "_PENSTOCK_COMPLETE").source())

"""`penstock check`: states that must not exist, and what mends them."""

from __future__ import annotations

import sys

import click

import penstock
from penstock.cli import shown


@click.command()
@click.option("--repair", is_flag=True, help="Mend what is found.")
@shown.json_option
@click.pass_obj
def check(url: str, repair: bool, as_json: bool) -> None:
    """Cross-check everything stored, and mend it with --repair.

    \b
    penstock check
    penstock check --repair

    Exit code 1 when something is wrong and was not mended.
    """
    with penstock.connect(url) as broker, shown.working("checking"):
        findings = broker.check(repair)
        left = broker.check() if repair and findings else findings
    if as_json:
        shown.as_json({"findings": findings, "left": left})
    else:
        _show(findings, left, repair)
    if left:
        sys.exit(1)


def _show(findings: list[penstock.Finding], left: list[penstock.Finding], repair: bool) -> None:
    for finding in findings:
        task = "" if finding.id is None else f" task {finding.id}"
        click.echo(shown.as_text(f"{finding.tube or 'store'}{task}: {finding.what}; {finding.remedy}"))
    if not findings:
        click.echo("everything fits together")
    elif repair:
        click.echo("all of it is mended" if not left else f"{len(left):,} could not be mended")

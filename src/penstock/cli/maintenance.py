"""`penstock check`, `migrate` and `rebuild`: integrity of the store, its schema, and the index of a pool."""

from __future__ import annotations

import sys

import click

import penstock
from penstock.cli import output
from penstock.cli.existing_store import connect_existing
from penstock.store.open import look_at_schema, open_store, rebuild_index
from penstock.store.sql.migrations import Schema


@click.command()
@click.option("--repair", is_flag=True, help="Repair what is found.")
@output.json_option
@click.pass_obj
def check(url: str, repair: bool, as_json: bool) -> None:
    """Cross-check everything stored; --repair fixes it.

    \b
    penstock check
    penstock check --repair

    Exit code 1 if something is wrong and was not repaired.
    """
    with connect_existing(url) as broker, output.working("checking"):
        findings = broker.check(repair)
        left = broker.check() if repair and findings else findings
    if as_json:
        output.as_json({"findings": findings, "left": left})
    else:
        _show(findings, left, repair)
    if left:
        sys.exit(1)


@click.command()
@click.option("--check", "check_only", is_flag=True, help="Only report missing updates; exit code 1 if there are any.")
@output.json_option
@click.pass_obj
def migrate(url: str, check_only: bool, as_json: bool) -> None:
    """Update the store's schema and report the changes.

    \b
    penstock migrate --check
    penstock migrate

    Every program does this when it opens the store; this command does it in advance.
    """
    before = look_at_schema(url)
    if not check_only:
        open_store(url).close()
    after = before if check_only else look_at_schema(url)
    applied = [name for name in before.pending if name not in after.pending]
    if as_json:
        output.as_json({"schema": after.stored, "newest": after.newest, "applied": applied, "pending": after.pending})
    else:
        _show_schema(before, after, applied)
    if after.pending:
        sys.exit(1)


def _show_schema(before: Schema, after: Schema, applied: list[str]) -> None:
    for name in applied:
        click.echo(f"applied {name}")
    for name in after.pending:
        click.echo(f"missing {name}")
    if applied:
        click.echo(f"the schema is now {after.stored}; before, it was {before.stored or 'missing'}")
    elif after.pending:
        click.echo(f"the schema is {after.stored or 'missing'}, but should be {after.newest}: run penstock migrate")
    else:
        click.echo(f"the schema is {after.stored} and up to date")


def _show(findings: list[penstock.Finding], left: list[penstock.Finding], repair: bool) -> None:
    for finding in findings:
        task = "" if finding.id is None else f" task {finding.id}"
        click.echo(output.as_text(f"{finding.tube or 'store'}{task}: {finding.what}; {finding.remedy}"))
    if not findings:
        click.echo("no problems found")
    elif repair:
        click.echo("everything was repaired" if not left else f"{len(left):,} could not be repaired")


@click.command()
@output.json_option
@click.pass_obj
def rebuild(url: str, as_json: bool) -> None:
    """Rebuild the index of a pool from its database.

    \b
    penstock --url redis://localhost/0 --pool postgresql:///jobs rebuild

    Programs do this automatically when they find Redis empty. It ends all leases.
    """
    loaded = 0

    def report(done: int, total: int) -> None:
        nonlocal loaded
        on_progress(done - loaded)
        loaded = done

    with output.counting("rebuilding") as on_progress:
        rebuild_index(url, report)
    if as_json:
        output.as_json({"tasks": loaded})
    else:
        click.echo(f"the index is complete: {loaded:,} tasks")

"""docs/matrix.md has a dated line without a failure for every version that the docs list."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.matrix.rows import ROWS

PROJECT = Path(__file__).parents[2]
SERVERS = {"PostgreSQL": "postgres", "MariaDB": "mariadb", "MySQL": "mysql", "Redis": "redis", "Valkey": "valkey"}


def lines() -> dict[str, list[str]]:
    """The cells of each row of the table."""
    found = re.findall(r"^\| `([^`]+)` \| (.*) \|$", (PROJECT / "docs/matrix.md").read_text(), re.M)
    return {name: cells.split(" | ") for name, cells in found}


def listed() -> list[str]:
    """The rows of the versions that docs/stores.md and the classifiers list."""
    stores = re.findall(r"^\| (.+?) \|", (PROJECT / "docs/stores.md").read_text(), re.M)
    rows = []
    for server, versions in re.findall(rf"({'|'.join(SERVERS)}) ((?:[\d.]+(?:, | and | to )?)+)", " ; ".join(stores)):
        first, to, last = versions.partition(" to ")
        found = [str(each) for each in range(int(first), int(last) + 1)] if to else re.findall(r"[\d.]*\d", versions)
        rows += [f"{SERVERS[server]}-{version}" for version in found]
    clusters = [f"{row}-cluster" for row in rows if row.startswith(("redis", "valkey"))]
    classifiers = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = re.findall(r":: Python :: (3\.\d+)$", "\n".join(classifiers), re.M)
    return [*rows, *clusters, *(f"python-{version}" for version in pythons)]


def test_the_table_has_the_rows_that_make_matrix_runs() -> None:
    assert list(lines()) == list(ROWS)


@pytest.mark.parametrize("row", listed())
def test_every_listed_version_was_run(row: str) -> None:
    version = row.removesuffix("-cluster").partition("-")[2]
    name = row if row in ROWS else row.replace(version, version.partition(".")[0])
    version_shown, *results, date = lines()[name]
    assert re.search(rf" {re.escape(version)}(\.|$)", version_shown), version_shown
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date), date
    assert all(re.fullmatch(r"\d+ passed|–", result) for result in results), results
    assert results[0] != "–"


def test_every_version_is_listed() -> None:
    assert len(listed()) == len(set(listed())) >= 24, listed()

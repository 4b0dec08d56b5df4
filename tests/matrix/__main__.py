"""Run the test suites on other versions of the servers and keep a table of the results.

    python -m tests.matrix [--only ROW] [-k EXPRESSION] [-n PROCESSES] [pytest arguments]
    python -m tests.matrix --table

Each row names Debian packages; they are installed once in a root under the cache (`roots.py`), and the test fixtures
start the server from there. The results of the last run of each row and suite are kept in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.matrix.roots import CACHE, CannotMake, installed_version, root_with, say
from tests.servers.base import Missing

PROJECT = Path(__file__).parents[2]
RESULTS = CACHE / "results.json"


@dataclass(frozen=True)
class Suite:
    """Tests to run, by folder and by the words that select the row's store in them."""

    name: str
    folder: str
    keyword: str = ""


@dataclass(frozen=True)
class Row:
    """One version of one server. The test fixtures start the server from the root that `variable` names."""

    name: str
    release: str
    packages: tuple[str, ...]  # the first one's version is the row's
    variable: str
    unset: tuple[str, ...]  # variables that would send the tests to another server
    suites: tuple[Suite, ...]


ROWS = {
    row.name: row
    for row in (
        Row(
            "mysql-9",
            "sid",
            ("mysql-server-core",),
            "PENSTOCK_MYSQL_ROOT",
            ("PENSTOCK_TEST_MYSQL",),
            (
                Suite("behaviour", "tests/behaviour", "mariadb"),
                Suite("model", "tests/model", "mariadb"),
                Suite("mysql", "tests/mysql"),
            ),
        ),
    )
}


@dataclass(frozen=True)
class Result:
    """What one run of a suite on a row gave."""

    server: str
    version: str
    suite: str
    selection: str  # the caller's pytest arguments: a run of a part never hides a run of the whole
    passed: int
    failed: int
    skipped: int
    date: str

    @property
    def key(self) -> tuple[str, str, str]:
        """A newer result with the same key replaces this one."""
        return self.server, self.suite, self.selection


def run_suite(
    row: Row, suite: Suite, root: Path, options: argparse.Namespace, arguments: Sequence[str]
) -> Result | None:
    """Run one suite with pytest, its output on ours, and count the outcomes; None if the caller selected none of it."""
    selection = " ".join([*(["-k", options.k] if options.k else []), *arguments])
    keywords = " and ".join(f"({word})" for word in (suite.keyword, options.k) if word)
    environment = {name: value for name, value in os.environ.items() if name not in row.unset}
    environment |= {row.variable: str(root), "CI": "true"}  # CI: a missing server is a failure, not a skip
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", suite.folder, "-k", keywords, "-n", options.n, *arguments]
        status = subprocess.run(
            [*command, f"--junitxml={report}"], cwd=PROJECT, env=environment, check=False
        ).returncode
        if status == 5 and selection:
            return None
        if status not in (0, 1):  # all passed, some failed
            raise CannotMake(f"pytest ended with status {status} on {row.name}, {suite.name}")
        counts = ElementTree.parse(report).getroot().find("testsuite")
        assert counts is not None
    total, skipped = int(counts.attrib["tests"]), int(counts.attrib["skipped"])
    failed = int(counts.attrib["failures"]) + int(counts.attrib["errors"])
    return Result(
        row.name,
        installed_version(root, row.packages[0]) or "",
        suite.name,
        selection,
        total - failed - skipped,
        failed,
        skipped,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    )


def kept_results() -> list[Result]:
    """The last result of each row, suite and selection."""
    return [Result(**kept) for kept in json.loads(RESULTS.read_text())] if RESULTS.exists() else []


def keep(result: Result) -> None:
    """Store a result in place of the older one of its key."""
    results = sorted([*(old for old in kept_results() if old.key != result.key), result], key=lambda kept: kept.key)
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps([asdict(kept) for kept in results], indent=1) + "\n")
    part.rename(RESULTS)


def show(results: Sequence[Result]) -> None:
    """Print the results as a table."""
    table = [tuple(Result.__dataclass_fields__), *(tuple(map(str, asdict(result).values())) for result in results)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def main() -> int:
    """Run what the command line asks for; 0 if every test passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix", epilog="Other arguments go to pytest.", allow_abbrev=False
    )
    parser.add_argument("--only", action="append", choices=ROWS, metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only tests that match, as pytest's -k")
    parser.add_argument("-n", default="0", metavar="PROCESSES", help="test processes, each with a server of its own")
    parser.add_argument("--table", action="store_true", help="run nothing, show the results that are kept")
    options, arguments = parser.parse_known_args()
    passed = True
    try:
        for name in () if options.table else options.only or ROWS:
            row = ROWS[name]
            root = root_with(row.release, row.packages)
            for suite in row.suites:
                say(f"{row.name}: {suite.name} on {row.packages[0]} {installed_version(root, row.packages[0])}")
                result = run_suite(row, suite, root, options, arguments)
                if result is not None:
                    keep(result)
                    passed = passed and not result.failed
    except (CannotMake, Missing) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    show(kept_results())
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

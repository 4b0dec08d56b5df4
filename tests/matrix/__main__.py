"""Run the test suites on every listed server and Python, and write the results to docs/matrix.md.

    python -m tests.matrix [--only ROW] [-n PROCESSES] [--minutes MINUTES] [--again]
    make matrix ONLY=mysql-9

The programs are installed once, in a cache outside the tree (`programs.py`). The result of each row and suite is kept
there as soon as it is known: a run that was stopped continues, and skips what passed with the same src and tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.matrix.programs import PROJECT, version_of
from tests.matrix.roots import CACHE, CannotMake, show
from tests.matrix.rows import ROWS, Row, Suite
from tests.servers.base import Missing

RESULTS = CACHE / "results.jsonl"
LOGS = CACHE / "logs"
PAGE = PROJECT / "docs/matrix.md"
ROW_MINUTES = 15
COLUMNS = ("behaviour", "model", "campaign", "own tests")
_TAIL_LINES = 25


@dataclass(frozen=True)
class Result:
    """The result of one suite on a row. `code` identifies src and tests, empty if they were not committed."""

    row: str
    suite: str
    version: str
    passed: int
    failed: int
    skipped: int
    seconds: int
    date: str
    code: str

    def __str__(self) -> str:
        parts = [f"{self.passed} passed"]
        parts += [f"**{self.failed} failed**"] if self.failed else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        return ", ".join(parts)


def run_suite(row: Row, suite: Suite, programs: Path, processes: str, seconds: float, code: str) -> Result:
    """Run one suite with pytest, its output in a log file, and count the outcomes."""
    python = str(programs / "python") if row.program == "python" else sys.executable
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment |= {"PYTHONPATH": str(PROJECT / "src"), "PENSTOCK_CAMPAIGN": "short"}
    environment |= {"PENSTOCK_PROGRAMS": str(programs), "CI": "true"}  # CI: a missing server is a failure, not a skip
    LOGS.mkdir(exist_ok=True)
    log = LOGS / f"{row.name}-{suite.name.replace(' ', '-')}.log"
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", *suite.paths, "-k", suite.keyword, "-n", processes, f"--junitxml={report}"]
    began = time.monotonic()
    with log.open("w") as output:
        running = subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            running.wait(seconds)
        except BaseException as stopped:  # its servers too: the guard of tests.servers stops them
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            if not isinstance(stopped, subprocess.TimeoutExpired):
                raise
            output.write("\nstopped: the row took too long\n")
    passed, failed, skipped = _counted(report)
    if running.returncode not in (0, 1):  # all passed, some failed
        failed += 1
    date, took = datetime.now(UTC).strftime("%Y-%m-%d"), round(time.monotonic() - began)
    version = version_of(programs / row.program)
    return Result(row.name, suite.name, version, passed, failed, skipped, took, date, code)


def _counted(report: Path) -> tuple[int, int, int]:
    """The numbers of tests that passed, failed and were skipped; none where pytest did not finish."""
    counts = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None
    if counts is None:
        return 0, 0, 0
    total, skipped = int(counts.attrib["tests"]), int(counts.attrib["skipped"])
    failed = int(counts.attrib["failures"]) + int(counts.attrib["errors"])
    return total - failed - skipped, failed, skipped


def run_row(row: Row, processes: str, minutes: float, code: str, done: set[str]) -> bool:
    """Run the suites of a row that have no result yet. Returns whether all tests passed."""
    programs = row.source.folder()
    ends, passed = time.monotonic() + minutes * 60, True
    for suite in row.suites:
        if suite.name in done:
            continue
        result = run_suite(row, suite, programs, processes, max(ends - time.monotonic(), 1), code)
        with RESULTS.open("a") as kept:
            kept.write(json.dumps(asdict(result)) + "\n")
        show(f"  {row.name} ({result.version}) {suite.name}: {result} in {result.seconds} s")
        if result.failed:
            passed = False
            log = LOGS / f"{row.name}-{suite.name.replace(' ', '-')}.log"
            show("\n".join([*log.read_text().splitlines()[-_TAIL_LINES:], f"all of it: {log}"]))
    write_table()
    return passed


def kept_results() -> dict[tuple[str, str], Result]:
    """The last result of each row and suite."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {(result.row, result.suite): result for result in results}


def write_table() -> None:
    """Replace the lines in docs/matrix.md of rows that were run on this machine; the others stay."""
    results, page = kept_results(), PAGE.read_text()
    there = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    lines = [f"| row | version | {' | '.join(COLUMNS)} | date |", f"|---|---|{'---|' * len(COLUMNS)}---|"]
    for row in ROWS.values():
        of_row = [results[row.name, suite.name] for suite in row.suites if (row.name, suite.name) in results]
        if of_row:
            by_suite = {result.suite: str(result) for result in of_row}
            cells = " | ".join(by_suite.get(name, "–") for name in COLUMNS)
            dates = min(result.date for result in of_row)
            lines.append(f"| `{row.name}` | {row.title.split(' ')[0]} {of_row[-1].version} | {cells} | {dates} |")
        else:
            not_run = f"| `{row.name}` | {row.title} | {'– | ' * len(COLUMNS)}not run |"
            lines.append(there.get(row.name, not_run))
    PAGE.write_text(re.sub(r"^\| row \|.*?(?=\n\n|\n?\Z)", "\n".join(lines), page, flags=re.M | re.S))


def committed_code() -> str:
    """A hash of the committed src and tests, empty if there are uncommitted changes."""
    parts = "src", "tests", "pyproject.toml"
    git = ["git", "-C", str(PROJECT)]
    if subprocess.run([*git, "status", "--porcelain", "--", *parts], capture_output=True, check=False).stdout:
        return ""
    asked = [*git, "rev-parse", "--short", *(f"HEAD:{part}" for part in parts)]
    return "-".join(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split())


def selected(names: Sequence[str]) -> list[Row]:
    """The rows of these names, or of the versions below them: redis-8 is redis-8.0, redis-8.2 and their clusters."""
    found = {
        name: [row for row in ROWS if row == name or (name not in ROWS and row.startswith((f"{name}-", f"{name}.")))]
        for name in names or ROWS
    }
    if unknown := [name for name, rows in found.items() if not rows]:
        raise CannotMake(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return [ROWS[row] for rows in found.values() for row in rows]


def main() -> int:
    """Run what the command line asks for; 0 if every test passed, 2 if a row could not be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", allow_abbrev=False)
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("-n", default="2", metavar="PROCESSES", help="test processes, each with a server of its own")
    parser.add_argument("--minutes", type=float, default=ROW_MINUTES, help="of a row, before it is stopped")
    parser.add_argument("--again", action="store_true", help="also run what passed with the same src and tests")
    parser.add_argument(
        "--table", action="store_true", help="run nothing, write the table of the results that are kept"
    )
    options = parser.parse_args()
    if options.table:
        write_table()
        return 0
    status, code = 0, committed_code()
    try:
        rows = selected(options.only)
    except CannotMake as error:
        parser.error(str(error))
    for number, row in enumerate(rows, 1):
        kept = kept_results().items()
        done = {
            suite
            for (name, suite), result in kept
            if name == row.name and result.code == code != "" and not result.failed
        }
        if options.again or not done.issuperset(suite.name for suite in row.suites):
            show(f"[{number}/{len(rows)}] {row.title}")
            try:
                wanted = set() if options.again else done
                status = max(status, not run_row(row, options.n, options.minutes, code, wanted))
            except (CannotMake, Missing) as error:
                show(f"  {row.name} cannot be run: {error}")
                status = 2
            except KeyboardInterrupt:
                show("stopped: run the same command again to continue")
                return 130
        else:
            show(f"[{number}/{len(rows)}] {row.title}: passed already with this code")
    return status


if __name__ == "__main__":
    sys.exit(main())

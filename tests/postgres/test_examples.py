"""The examples of bind run as written, with the documented result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

EXAMPLES = Path(__file__).parents[2] / "examples" / "transactions"


@pytest.mark.parametrize("example", ["with_psycopg", "with_sqlalchemy", "with_django"])
def test_the_mail_follows_the_order(example: str, url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_URL": url, "PENSTOCK_LOCKS": str(tmp_path / "locks")}
    environment["PYTHONPATH"] = str(Path(penstock.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py")],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if not line.startswith("refused:")]
    assert lines == ["orders: ['ada@example.org']", "mail to ada@example.org: your order is on its way"]

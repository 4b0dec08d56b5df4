"""docs/scaling.md shows what examples/scaling_plan.py prints."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text()


def test_the_plan_is_printed_by_the_example() -> None:
    [(command, shown)] = re.findall(
        r"```sh\npython (examples/scaling_plan\.py.*)\n```\n\n<!--.*\n```text\n(.*?)```", PAGE, re.S
    )
    printed = subprocess.check_output([sys.executable, *command.split()], cwd=ROOT, text=True)
    assert printed == shown

"""The examples in CONTRIBUTING.md are lines of our own code, and `make quick` names existing tests."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

_EXAMPLE = re.compile(r"\(`([\w/.]+\.py)`\)[^`]*?```python\n(.*?)```", re.DOTALL)


def test_the_examples_are_in_the_files_that_they_name() -> None:
    examples = _EXAMPLE.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(examples) == 3
    for path, code in examples:
        source = {line.strip() for line in (ROOT / path).read_text().splitlines()}
        assert [line for line in code.splitlines() if line.strip() not in source | {""}] == [], path


def test_the_tests_of_make_quick_exist() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    [names] = re.findall(r"^QUICK := \$\(addprefix tests/,(.*)\)$", makefile, re.MULTILINE)
    assert [name for name in names.split() if not (ROOT / "tests" / name).exists()] == []

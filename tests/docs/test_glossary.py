"""docs/glossary.md and the public names agree, and docs/errors.md has every error."""

from __future__ import annotations

import re

import pytest

import penstock
from penstock.app.handler_options import TaskOptions
from penstock.core.kind import find_kind
from penstock.core.options import TimedOptions, TubeOptions
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "glossary.md").read_text()
MARKED = set(re.findall(r"`([^`]+)`", PAGE))

ERRORS = {
    name
    for name in penstock.__all__
    if isinstance(getattr(penstock, name), type) and issubclass(getattr(penstock, name), penstock.PenstockError)
}
CLASSES = [getattr(penstock, name) for name in penstock.__all__ if isinstance(getattr(penstock, name), type)]
KINDS = {"fifo", "fifottl", "utube", "utubettl", "round", "reliable"}
OUTCOMES = {"done", "failed", "cancelled", "deleted", "expired", "unknown"}

REQUIRED = {
    *(set(penstock.__all__) - ERRORS - {"__version__"}),
    *(name for name in dir(penstock.Tube) if name[0] != "_" and callable(getattr(penstock.Tube, name))),
    *TubeOptions.__annotations__,
    *TimedOptions.__annotations__,
    *KINDS,
    *OUTCOMES,
    *(status.value for status in penstock.Status),
}
KNOWN = {
    *REQUIRED,
    *penstock.__all__,
    *(name for each in CLASSES for name in dir(each) if name[0] != "_"),
    *TaskOptions.__annotations__,
    *("aio", "timeout", "max_pri", "pool"),  # a module, and parameters of calls
}


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_public_name_is_in_the_glossary(name: str) -> None:
    assert name in MARKED, f"docs/glossary.md does not explain {name}"


@pytest.mark.parametrize("word", sorted(MARKED))
def test_a_word_of_the_glossary_is_a_public_name(word: str) -> None:
    owner, _, name = word.rpartition(".")
    if owner:
        assert hasattr(getattr(penstock, owner), name), f"penstock.{word} does not exist"
    else:
        assert word in KNOWN, f"{word} is not a public name: do not set it as code"


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_kinds_exist(name: str) -> None:
    assert find_kind(name).name == name


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_is_on_the_page_of_errors(name: str) -> None:
    assert name in (ROOT / "docs" / "errors.md").read_text()

"""`python -m bench --against REV` on a small scale: checks out the other commit and measures both sides."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from bench import against


def test_two_lines_are_compared_with_another_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # a git hook that runs the tests sets them for its own repository
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    repository = tmp_path / "repository"
    shutil.copytree(against.ROOT / "src", repository / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for words in ("init", "add .", "-c user.name=x -c user.email=x commit --message x"):
        subprocess.run(["git", "-C", str(repository), *words.split()], check=True, capture_output=True)

    other = against.extract("HEAD", repository)
    lines = against.compare(other, ["relaxed", "put", "take"], 1, quick=True)

    assert [line.key for line in lines] == ["relaxed/put", "relaxed/take"]
    assert all(line.ratio is not None and line.ratio > 0 and not line.note for line in lines)
    with pytest.raises(ValueError, match="nothing has no sources"):
        against.extract("nothing", repository)

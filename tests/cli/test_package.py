"""What is installed, what is imported, and that read commands leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import penstock
from penstock.cli.main import cli
from penstock.store.open import look_at_schema
from tests.servers import fresh_url
from tests.support.shell import SOURCE, Shell

ROOT = Path(__file__).parents[2]
LOOKS = [
    ["ls"], ["tubes"], ["ls", "mail"], ["tasks", "mail"], ["peek", "mail", "1"], ["why", "mail", "1"],
    ["stats", "mail"], ["groups", "mail"], ["schedules"], ["sessions"], ["top", "--updates", "1"], ["check"],
    ["doctor"], ["export", "mail"], ["take", "mail", "--timeout", "0"], ["ack", "mail", "1"], ["wait", "mail", "a"],
]  # fmt: skip


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_a_read_command_creates_no_store(shell: Shell, words: list[str]) -> None:
    with pytest.raises(penstock.NotFound) as refused:
        cli.main(["--url", shell.url, *words], standalone_mode=False)
    path = shell.folder / "queue.db"
    assert str(refused.value) == f"there is no store at {path}: give another --url, or create it with penstock migrate"
    assert list(shell.folder.glob("*.db*")) == []


def test_a_read_command_names_an_unknown_scheme() -> None:
    with pytest.raises(penstock.BadValue, match="store URL 'nosuch://x' has no known scheme"):
        look_at_schema("nosuch://x")


@pytest.mark.parametrize("store", ["postgres", "redis", "redis-cluster"])
def test_a_read_command_creates_no_store_on_a_server(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = fresh_url(store)
    with pytest.raises(penstock.NotFound, match="there is no store at "):
        cli.main(["--url", url, "ls"], standalone_mode=False)
    assert look_at_schema(url).stored is None
    for words in (["migrate"], ["ls", "--json"]):
        cli.main(["--url", url, *words], standalone_mode=False)
    assert capsys.readouterr().out.endswith("\n[]\n")


def test_a_tube_that_moved_is_listed_with_its_new_place(shell: Shell) -> None:
    assert "there is no store at " in shell.refused("move", shell.url, "sqlite:///new.db")
    shell("put", "mail", "x")
    shell("move", shell.url, "sqlite:///new.db")
    assert shell("ls") == f"mail has moved to sqlite:///{shell.folder}/new.db"
    shell("put", "other", "x")
    assert shell("ls").splitlines()[-1] == f"mail has moved to sqlite:///{shell.folder}/new.db"
    assert [tube["name"] for tube in shell.json("ls")] == ["other"]


# However slow the store is on this machine.
_PATIENT = "from penstock.cli import completion, main; completion.PATIENCE = 60.0; main.main()"


def complete(shell: Shell, *words: str) -> list[str]:
    """The completions that the shell gets for the last word."""
    environment = {
        **shell.environment, "_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("penstock", *words)),
        "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _PATIENT], env=environment, cwd=shell.folder, capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.split()]


def test_completion(shell: Shell) -> None:
    with penstock.connect(shell.url) as broker:
        for name in ("mail", "main", "other"):
            broker.tube(name)
    assert complete(shell, "stats", "ma") == ["mail", "main"]
    assert complete(shell, "--url", shell.url, "take", "mail", "o") == ["other"]
    assert complete(shell, "worker", "--tubes", "mail,o") == ["mail,other"]
    assert complete(shell, "create", "new", "u") == ["utube", "utubettl"]
    assert complete(shell, "tasks", "mail", "--status", "b") == ["buried"]
    assert complete(shell, "put", "mail", "--on-duplicate", "r") == ["replace"]
    assert complete(shell, "alter", "mail", "--default", "max_") == ["max_attempts", "max_payload"]
    assert complete(shell, "--url", "sqlite:///none.db", "stats", "m") == []
    assert list(shell.folder.glob("none.db*")) == []


@pytest.mark.parametrize(
    "code",
    [
        "import penstock.worker.worker",
        "import penstock.cli.put, penstock.cli.query_commands, penstock.cli.worker_command",
        "app = penstock.App('memory://'); app.task(print, name='p')\n"
        "worker = penstock.worker.worker.Worker(app); worker.start(); worker.stop(); app.close()",
    ],
)
def test_only_commands_that_draw_on_a_terminal_import_rich(code: str) -> None:
    unwanted = "{'rich', 'prometheus_client', 'starlette'}"
    script = f"import sys, penstock, penstock.worker.worker\n{code}\nassert not {unwanted} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env={"PYTHONPATH": SOURCE})


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=ROOT, check=True, timeout=120, capture_output=True, text=True
    )
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [about] = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("METADATA")]
    source = ROOT / "src"
    there = {str(file.relative_to(source)) for file in source.glob("penstock/**/*") if file.is_file()}
    assert inside == {name for name in there if "__pycache__" not in name}
    endings = {Path(name).suffix for name in inside} | {Path(name).name for name in inside}
    assert {".sql", ".lua", ".html", ".css", ".js", "py.typed"} <= endings
    assert "# penstock" in about  # the readme

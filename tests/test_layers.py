"""Which layer may import which, read from the source of every module. There is no list of exceptions, on purpose."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = sorted(SOURCE.glob("penstock/**/*.py"))
# A module may import from its own layer and from layers above it in this list. "" is penstock/__init__.py.
LAYERS = [
    "errors",
    "core",
    "engine",
    "system",
    "store",
    "operations runtime broker aio transfer",
    "app worker schedule callbacks amqp",
    "",
    "server",
    "cli __main__",
    "django",
    "testing",
]
LAYER_OF = {name: place for place, names in enumerate(LAYERS) for name in names.split() or [""]}
DRIVERS = {
    "apsw": "store/sqlite",
    "psycopg": "store/postgres",
    "pymysql": "store/mysql",
    "MySQLdb": "store/mysql",
    "redis": "store/redis",
    "httpcore": "callbacks",
    "pika": "amqp",
    "opentelemetry": "app",
    "django": "django",
    "django_tasks": "django",
}
# core gets time and randomness as arguments, and never waits
IMPURE = {"asyncio", "concurrent", "multiprocessing", "os", "random", "secrets", "socket", "threading", "time"}


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything that the module imports, also in functions and for types."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            # in "from penstock import x", x is a module of ours or a name of the package
            whole = node.module == "penstock"
            yield from (f"penstock.{alias.name}" for alias in node.names) if whole else [str(node.module)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def home(dotted: str) -> str:
    """The first name below penstock, or "" for the package itself."""
    name = dotted.partition(".")[2].partition(".")[0]
    known = (SOURCE / "penstock" / name).is_dir() or (SOURCE / "penstock" / f"{name}.py").is_file()
    return name if known else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    inside = path.relative_to(SOURCE / "penstock")
    own = "" if inside.name == "__init__.py" and len(inside.parts) == 1 else inside.parts[0].removesuffix(".py")
    assert own in LAYER_OF, f"{inside} has no place: give {own} a layer in HOUSE and here"
    for dotted in imports(path):
        top = dotted.partition(".")[0]
        if top == "penstock":
            assert LAYER_OF[home(dotted)] <= LAYER_OF[own], f"{inside} imports {dotted}, which is above it"
        elif top in DRIVERS:
            assert inside.is_relative_to(DRIVERS[top]), f"{inside} imports {top}: only {DRIVERS[top]} may"
        assert own != "core" or top not in IMPURE, f"{inside} imports {top}: core is pure"


def test_importing_penstock_loads_no_driver() -> None:
    code = f"import sys, penstock; print(*sorted({set(DRIVERS)} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert loaded.stdout.split() == []

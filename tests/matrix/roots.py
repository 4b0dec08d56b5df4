"""Debian roots with other versions of programs, made once and kept in a cache outside the tree.

A root is a folder with a minimal Debian of another release and the packages that the matrix needs from it. Its programs
run outside of it, by scripts that start them with the root's own dynamic loader and libraries.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.base import find

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "/var/cache") / "penstock-matrix"
_TAIL_LINES = 15


class CannotMake(Exception):
    """A server or a Python cannot be installed on this machine; the message says why."""


def show(line: str) -> None:
    """Print a line of progress, unbuffered."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def root_with(release: str, packages: Sequence[str]) -> Path:
    """The root of that Debian release with these packages, made or completed if needed."""
    root = CACHE / release
    with locked():
        if not root.exists():
            _bootstrap(release, root)
        missing = [name for name in packages if not _is_installed(root, name)]
        if missing:
            _install(release, root, missing)
    return root


def write_script(script: Path, root: Path, program: str, *arguments: str, argv0: str = "") -> Path:
    """Write a script that runs a program of the root on this system, with these arguments after the caller's."""
    loader = next(root.glob("lib*/ld-linux*.so.*"))
    libraries = ":".join(map(str, root.glob("usr/lib/*-linux-gnu")))
    name = f' --argv0 "{argv0}"' if argv0 else ""
    words = " ".join(['"$@"', *arguments])
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"#!/bin/sh\nexec {loader}{name} --library-path {libraries} {root}/{program} {words}\n")
    script.chmod(0o755)
    return script


def write_inside_script(script: Path, root: Path, program: Path) -> None:
    """Write a script that runs a program inside the root, with this system's /tmp and /dev, where tests keep files."""
    mounts = f"mount --rbind /tmp {root}/tmp && mount --rbind /dev {root}/dev && mount -t proc proc {root}/proc"
    inside = f'exec chroot {root} "$0" "$@"'
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        f"#!/bin/sh\nexec unshare --mount sh -c '{mounts} && {inside}' /{program.relative_to(root)} \"$@\"\n"
    )
    script.chmod(0o755)


@contextmanager
def locked() -> Iterator[None]:
    """Let one process at a time change the cache; the kernel releases the lock of a killed process."""
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        lock = (CACHE / "lock").open("w")
    except PermissionError as error:
        raise CannotMake(f"{CACHE} is not writable: run as root, or set XDG_CACHE_HOME") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: Sequence[str], cwd: Path | None = None) -> str:
    """What a command prints; CannotMake with the end of it if it fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        raise CannotMake(f"`{' '.join(command)}` failed with status {done.returncode}:\n{tail}")
    return done.stdout


def _is_installed(root: Path, package: str) -> bool:
    asked = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout == "installed"


def _bootstrap(release: str, root: Path) -> None:
    _require_superuser(f"making a Debian {release} root in {root}")
    debootstrap = find("debootstrap", "debootstrap", ())
    mirror = _mirror()
    part = root.with_suffix(".part")  # renamed when complete
    run(["rm", "-rf", "--one-file-system", str(part)])
    show(f"making a Debian {release} root in {root}: one or two minutes, 500 MB")
    # In a private mount namespace, so that what debootstrap mounts in the root is unmounted however it ends.
    run(["unshare", "--mount", debootstrap, "--variant=minbase", release, str(part), mirror])
    # Mirrors that hold an older state of the archive stay usable, and no package starts a service.
    (part / "etc/apt/apt.conf.d/99matrix").write_text('Acquire::Check-Valid-Until "false";\n')
    (part / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (part / "usr/sbin/policy-rc.d").chmod(0o755)
    part.rename(root)


def _install(release: str, root: Path, packages: Sequence[str]) -> None:
    _require_superuser(f"installing {', '.join(packages)} in {root}")
    show(f"installing {', '.join(packages)} in {root}")
    # Both may have changed since the root was made.
    (root / "etc/apt/sources.list").write_text(f"deb {_mirror()} {release} main\n")
    (root / "etc/resolv.conf").write_bytes(Path("/etc/resolv.conf").read_bytes())
    apt = f"mount -t proc proc {root}/proc && exec chroot {root} apt-get --quiet "
    for command in ("update", f"install --yes --no-install-recommends {' '.join(packages)}", "clean"):
        run(["unshare", "--mount", "sh", "-c", apt + command])


def _require_superuser(purpose: str) -> None:
    if os.getuid() != 0:
        raise CannotMake(f"{purpose} needs root: run `python -m tests.matrix` once as root")


def _mirror() -> str:
    """The Debian mirror that apt uses on this machine."""
    asked = [
        "apt-get",
        "indextargets",
        "--format",
        "$(SITE)",
        "Created-By: Packages",
        "Origin: Debian",
        "Label: Debian",
    ]
    for update_first in (False, True):  # apt knows the origin of a source from its downloaded lists
        if update_first:
            run(["apt-get", "update", "--quiet"])
        if sites := run(asked).split():
            return sites[0]
    raise CannotMake("no Debian mirror in apt's configuration: add one to /etc/apt/sources.list")

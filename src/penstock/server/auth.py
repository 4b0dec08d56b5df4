"""Tokens and roles, and the delay after wrong tokens.

Only hashes of tokens are kept, in the file and in memory, and no message shows a token. A line of the token file is a
role, the hash and a descriptive name: `operate sha256:9f86d0… deploy robot`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from penstock.errors import BadValue

# The first failures are not delayed; each further failure doubles the delay.
FREE_FAILURES = 10
LONGEST_WAIT = 60.0
# The longest delay of a response in seconds; a delayed connection costs memory.
MAX_DELAY = 3.0
# After this many seconds without a failure, the count of a peer starts again.
FORGET_SECONDS = 600.0
# Peers remembered: enough for all honest ones; an attacker with more addresses only evicts their own.
MAX_PEERS = 10_000


class Failures:
    """Counts failures by peer, in bounded memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, tuple[int, float]] = OrderedDict()  # peer -> failures, time of the last one

    def wait(self, peer: str) -> float:
        """Seconds until this peer may try again; 0 if it may now."""
        count, last = self._peers.get(_network(peer), (0, 0.0))
        if count < FREE_FAILURES:
            return 0.0
        pause = min(2.0 ** min(count - FREE_FAILURES, 10), LONGEST_WAIT)  # larger powers overflow
        return max(0.0, last + pause - self._clock())

    def add(self, peer: str) -> None:
        """Count a failure of this peer."""
        network, now = _network(peer), self._clock()
        count, last = self._peers.pop(network, (0, now))
        self._peers[network] = (1 if now - last > FORGET_SECONDS else count + 1, now)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)


def _network(peer: str) -> str:
    """The network of a peer: one client usually has a whole IPv6 /64."""
    if ":" not in peer:
        return peer
    try:
        address = ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"{int(address) >> 64:x}"
    return peer


_LINE = re.compile(r"(read|operate|admin)\s+sha256:([0-9a-f]{64})(?:\s+(.*))?")
# Longer texts cannot be tokens and are not hashed.
MAX_TOKEN = 1000


class Role(IntEnum):
    """What a token allows; each role may do what the smaller ones may."""

    READ = 1  # look
    OPERATE = 2  # put, take, settle, kick
    ADMIN = 3  # create, drop, truncate, repair


def hashed(token: str) -> str:
    """The hash of a token. A fast hash is enough, because tokens are long and random."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def make_token() -> str:
    """A new token of 256 random bits."""
    return secrets.token_urlsafe(32)


def token_line(role: Role, token: str, name: str = "") -> str:
    """The token's line for the file."""
    return f"{role.name.lower()} sha256:{hashed(token)} {name}".rstrip() + "\n"


class Tokens:
    """The tokens of a file, and an admin token from the environment. A changed file is read again."""

    def __init__(self, file: str | Path | None = None, single: str | None = None) -> None:
        self.failures = Failures()
        self._file = None if file is None else Path(file)
        self._single = {hashed(single): Role.ADMIN} if single else {}
        self._roles: dict[str, Role] = {}
        self._names: dict[str, str] = {}
        self._read: tuple[int, int, int] | None = None
        self._refresh(first=True)

    @property
    def required(self) -> bool:
        """Whether callers need a token. Without tokens, the server listens on this host only and serves everyone."""
        return self._file is not None or bool(self._single)

    def check(self, token: str, peer: str = "") -> Role | None:
        """The role of a token; None for an unknown one, whose response must be delayed by `delay`.

        A valid token is accepted however many wrong ones came from the same address, which others may share. The time
        taken does not depend on the token.
        """
        role = self.role_of(hashed(token)) if len(token) <= MAX_TOKEN else None
        if role is None:
            self.failures.add(peer)
        return role

    def wait(self, peer: str) -> float:
        """Seconds that this peer is asked to wait after wrong tokens; 0 if none."""
        return self.failures.wait(peer)

    def delay(self, peer: str) -> float:
        """Seconds to delay the response to a wrong token."""
        return min(self.failures.wait(peer), MAX_DELAY)

    def role_of(self, digest: str) -> Role | None:
        """The role of the token with that hash, as long as it is in the file."""
        self._refresh()
        found: Role | None = None
        for known, role in (*self._single.items(), *self._roles.items()):
            if hmac.compare_digest(known, digest):
                found = role
        return found

    def name_of(self, digest: str) -> str:
        """The descriptive name of the token with that hash; "" if it has none."""
        return self._names.get(digest, "")

    def _refresh(self, *, first: bool = False) -> None:
        if self._file is None:
            return
        try:
            stat = os.stat(self._file)
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp != self._read:
                self._roles, self._names = read_tokens(self._file), read_names(self._file)
                self._read = stamp
        except (OSError, UnicodeDecodeError, BadValue) as error:
            if first:
                if isinstance(error, BadValue):
                    raise
                why = error.strerror if isinstance(error, OSError) else error
                message = f"token file {self._file} cannot be read ({why}): make one with `penstock token {self._file}`"
                raise BadValue(message) from error
            # While the file is missing or damaged, no token is valid: the new version may have revoked one.
            self._roles, self._read = {}, None


def read_tokens(file: Path) -> dict[str, Role]:
    """The roles of a token file, by token hash."""
    roles: dict[str, Role] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:  # the line may contain a token in clear text, so it is not shown
            raise BadValue(
                f"line {number} of token file {file} is not `role sha256:… name`: make one with `penstock token`"
            )
        roles[match[2]] = Role[match[1].upper()]
    if not roles:
        raise BadValue(f"token file {file} has no token: make one with `penstock token`")
    return roles


def read_names(file: Path) -> dict[str, str]:
    """The descriptive names of a token file, by token hash."""
    found = (_LINE.fullmatch(line.strip()) for line in file.read_text().splitlines())
    return {match[2]: match[3] for match in found if match and match[3]}

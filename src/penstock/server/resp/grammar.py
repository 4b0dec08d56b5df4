"""Parser of Redis protocol requests: arrays of bulk strings, and inline commands.

Knows no sockets and no commands. Memory is allocated for bytes that have arrived, never for a declared size.
"""

from __future__ import annotations

import re

Request = list[bytes]

# The most arguments and bytes of one request. Each argument also counts with its overhead, WORD_SIZE.
MAX_ARGUMENTS = 1024 * 1024
MAX_REQUEST = 64 * 1024 * 1024
MAX_INLINE = 64 * 1024
WORD_SIZE = 64
# The longest header: "*" or "$", the digits and CR LF. Longer ones are refused before their end has arrived.
_MAX_HEADER = 32

_ARRAY = re.compile(rb"\*(0|[1-9][0-9]{0,9})\r\n")
_BULK = re.compile(rb"\$(0|[1-9][0-9]{0,9})\r\n")
# An HTTP request, which a browser may be tricked into sending here, starts like this or has such a line.
_HTTP = re.compile(rb"(?i)(get|post|put|head|options|delete|patch|connect|trace)\s|host:")
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f]")

_CR, _LF = b"\r\n"

# Most requests are short. A window of bytes is split at its line ends at once, and requests whose words have exactly
# the announced lengths are accepted as they are. Everything else is read word by word.
_WINDOW = 32 * 1024
_COUNTS = {b"*%d" % count: count for count in range(1, 33)}
_LENGTHS = [b"$%d" % length for length in range(2048)]

_TOKEN = re.compile(rb"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"']+))(?=\s|$)""")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))")
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


class ProtocolError(Exception):
    """The bytes are not a request: the peer gets an error and is disconnected."""


class ForeignProtocol(ProtocolError):
    """The peer speaks HTTP: it is disconnected without a reply."""


class Requests:
    """Feed it bytes, read requests. After a ProtocolError nothing more is read."""

    def __init__(self) -> None:
        #: The largest request in bytes.
        self.limit = MAX_REQUEST
        self._buffer = bytearray()
        self._at = 0  # the read position: bytes before it were consumed
        self._scanned = 0  # the bytes before this contain no line end
        self._args: Request = []
        self._count = 0  # arguments of the request that is arriving; 0 if none is
        self._size = 0  # bytes of the request so far
        self._want = -1  # length of the next argument; -1 before its header
        self._error: ProtocolError | None = None

    @property
    def pending(self) -> int:
        """Bytes fed and not read yet."""
        return len(self._buffer) - self._at

    @property
    def partial(self) -> bool:
        """Whether a request has begun to arrive."""
        return self._count > 0 or self.pending > 0

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        if self._at:
            del self._buffer[: self._at]
            self._scanned = max(0, self._scanned - self._at)
            self._at = 0
        self._buffer += data

    def read(self, count: int) -> list[Request]:
        """Up to `count` complete requests, in order; an empty list if more bytes are needed."""
        if self._error is not None:
            raise self._error
        found: list[Request] = []
        try:
            plain = count > 1 and not self._count
            while len(found) < count:
                # After a request that is not plain, the next ones rarely are, and splitting again would cost more.
                if plain and (plain := self._read_plain(count, found)):
                    continue
                request = self._next()
                if request is None:
                    break
                if request:
                    found.append(request)
        except ProtocolError as error:
            self._error = error
            if not found:  # otherwise the requests before it are answered first
                raise
        return found

    def _read_plain(self, count: int, found: list[Request]) -> bool:
        """Read plain requests until there are `count`. Returns False if the next request is not plain.

        A word that holds a line end is shorter here than it was announced, so it is never taken for a whole one.
        """
        lines = bytes(self._buffer[self._at : self._at + _WINDOW]).split(b"\r\n")
        first, arrived = 0, len(lines) - 1  # the last line is incomplete
        try:
            while len(found) < count:
                end = first + 2 * _COUNTS[lines[first]] + 1
                words = lines[first + 2 : end : 2]
                if end > arrived or lines[first + 1 : end : 2] != [_LENGTHS[len(word)] for word in words]:
                    break
                found.append(words)
                first = end
        except (KeyError, IndexError):
            pass
        self._at += sum(map(len, lines[:first])) + 2 * first
        return first > 0

    def _next(self) -> Request | None:
        """The next request (empty for a blank line); None if it is incomplete."""
        if not self._count:
            if self._at == len(self._buffer):
                return None
            if self._buffer[self._at] != ord("*"):
                return self._inline()
            match = _ARRAY.match(self._buffer, self._at)
            if match is None:
                self._check_header("multibulk")
                return None
            count, self._at = int(match[1]), match.end()
            if count > MAX_ARGUMENTS:
                raise ProtocolError("Protocol error: invalid multibulk length")
            if not count:
                return []
            self._count, self._args, self._size = count, [], 0
        return self._arguments()

    def _arguments(self) -> Request | None:
        """Parse the arguments of a request. The hot part of the parser."""
        buffer, args, count, want = self._buffer, self._args, self._count, self._want
        arrived = len(buffer)
        while True:
            if want < 0:
                match = _BULK.match(buffer, self._at)
                if match is None:
                    self._want = want
                    self._check_header("bulk")
                    return None
                want = int(match[1])
                self._at = match.end()
                self._size += want + WORD_SIZE
                if self._size > self.limit:
                    raise ProtocolError(f"Protocol error: invalid bulk length: a request may have {self.limit} bytes")
            end = self._at + want
            if arrived < end + 2:
                self._want = want
                return None
            if buffer[end] != _CR or buffer[end + 1] != _LF:
                raise ProtocolError("Protocol error: expected CRLF after the bytes of an argument")
            args.append(bytes(buffer[self._at : end]))
            self._at = end + 2
            want = -1
            if len(args) == count:
                self._count, self._want = 0, -1
                return args

    def _check_header(self, what: str) -> None:
        """Raise if the next bytes cannot become a header."""
        if what == "bulk" and self.pending and self._buffer[self._at] != ord("$"):
            raise ProtocolError(f"Protocol error: expected '$', got {chr(self._buffer[self._at])!a}")
        if self._buffer.find(b"\n", self._at, self._at + _MAX_HEADER) >= 0:
            raise ProtocolError(f"Protocol error: invalid {what} length")
        if self.pending >= _MAX_HEADER:
            raise ProtocolError(f"Protocol error: too big {what} count string")

    def _inline(self) -> Request | None:
        limit = min(MAX_INLINE, self.limit)
        end = self._buffer.find(b"\n", max(self._at, self._scanned))
        self._scanned = len(self._buffer)
        if end - self._at > limit or (end < 0 and self.pending > limit):
            raise ProtocolError("Protocol error: too big inline request")
        if end < 0:
            return None
        line = bytes(self._buffer[self._at : end]).removesuffix(b"\r")
        self._at = self._scanned = end + 1
        if _HTTP.match(line):
            raise ForeignProtocol("HTTP")
        if _CONTROL.search(line):
            raise ProtocolError("Protocol error: unexpected byte in an inline request")
        return split_line(line)


def split_line(line: bytes) -> Request:
    """Split an inline request into words. Quotes group words with spaces; double quotes allow escapes."""
    words: Request = []
    at = 0
    line = line.rstrip()
    while at < len(line):
        match = _TOKEN.match(line, at)
        if match is None:
            raise ProtocolError("Protocol error: unbalanced quotes in request")
        double, single, plain = match.groups()
        if double is not None:
            words.append(_ESCAPE.sub(_unescaped, double))
        else:
            words.append(plain if single is None else single.replace(b"\\'", b"'"))
        at = match.end()
    return words


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return bytes.fromhex(match[1].decode())
    return _ESCAPES.get(match[2], match[2])

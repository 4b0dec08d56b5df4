"""The signature of `.put` for type checkers: the function's arguments, and put options among the keywords.

Python's types cannot express "the parameters of P and more keywords". Overloads come close: without options, all
arguments are checked; with options and positional arguments only, all of both; with options and keyword arguments, the
options and the first positional argument. `.options(…).put(…)` is always checked completely.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from penstock.app.arguments import CallOptions
from penstock.core.values import Seconds

P = ParamSpec("P")
H = TypeVar("H", covariant=True)  # what a put returns: a handle, or a coroutine of it
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
A_ = TypeVar("A_", contravariant=True)
B_ = TypeVar("B_", contravariant=True)
C_ = TypeVar("C_", contravariant=True)
D_ = TypeVar("D_", contravariant=True)


class _First(Protocol[A_]):
    def accepts(self, a: A_, /, *args: Any, **kwargs: Any) -> object: ...


class _None(Protocol):
    def accepts(self) -> object: ...


class _One(Protocol[A_]):
    def accepts(self, a: A_, /) -> object: ...


class _Two(Protocol[A_, B_]):
    def accepts(self, a: A_, b: B_, /) -> object: ...


class _Three(Protocol[A_, B_, C_]):
    def accepts(self, a: A_, b: B_, c: C_, /) -> object: ...


class _Four(Protocol[A_, B_, C_, D_]):
    def accepts(self, a: A_, b: B_, c: C_, d: D_, /) -> object: ...


class Put(Protocol[P, H]):
    """A bound `.put` of a function with the parameters P."""

    # For the overloads only: the annotation of `self` selects those that the function has enough parameters for.
    def accepts(self, *args: P.args, **kwargs: P.kwargs) -> object: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> H: ...
    @overload
    def __call__(self: _None, **options: Unpack[CallOptions]) -> H: ...
    @overload
    def __call__(self: _One[A], a: A, /, **options: Unpack[CallOptions]) -> H: ...
    @overload
    def __call__(self: _Two[A, B], a: A, b: B, /, **options: Unpack[CallOptions]) -> H: ...
    @overload
    def __call__(self: _Three[A, B, C], a: A, b: B, c: C, /, **options: Unpack[CallOptions]) -> H: ...
    @overload
    def __call__(self: _Four[A, B, C, D], a: A, b: B, c: C, d: D, /, **options: Unpack[CallOptions]) -> H: ...
    # With keyword arguments. One overload for each option, where it is required: if it were optional, the overload
    # would also accept wrong arguments without any option.
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, delay: Seconds | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, at: datetime | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, pri: int | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, ttl: Seconds | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, ttr: Seconds | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, utube: str | int | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, rank: float | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, address: str | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, on_duplicate: str | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, group: str | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, callback: str | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, reply_to: str | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, max_attempts: int | None, **more: object) -> H: ...
    @overload
    def __call__(self: _First[A], a: A = ..., /, *, timeout: Seconds | None, **more: object) -> H: ...


class PutMethod(Protocol[P, H]):
    """The descriptor of `.put` on a class."""

    def __get__(self, handler: object, owner: type | None = None, /) -> Put[P, H]: ...


def with_options(method: Callable[Concatenate[Any, P], H]) -> PutMethod[P, H]:
    """Type a method as accepting the function's arguments and put options. Returns it unchanged."""
    return cast("PutMethod[P, H]", method)

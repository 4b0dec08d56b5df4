"""Converts the arguments and the result of a function to JSON, and calls the function with stored arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from types import GenericAlias
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import astuple

from penstock.app.current import Bury
from penstock.core import codec
from penstock.core.names import failure, kind_of
from penstock.core.options import TimedOptions
from penstock.core.values import Seconds
from penstock.errors import BadValue

_ATOMS = frozenset({str, int, float, bool, type(None)})


def hints(what: str, function: object) -> dict[str, Any]:
    """The annotations of a function, resolved; `object` is Any."""
    try:
        found = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise BadValue(
            f"an annotation of {what} cannot be resolved ({error}): import its names where the module runs, "
            "not for type checking alone, and not inside a function"
        ) from None
    return {name: Any if kind is object else kind for name, kind in found.items()}


def store(what: str, value: object, kind: object) -> object:
    """The value as JSON types, by its annotation. Raises BadValue if that is not possible."""
    if type(value) in _ATOMS or kind is Any:
        return value  # without an annotation its type could not be restored; the codec refuses non-JSON values
    try:
        return codec.lists(msgspec.to_builtins(value, str_keys=True, enc_hook=_dump))
    except (TypeError, NotImplementedError, RecursionError, ValueError) as error:
        raise BadValue(f"{what} cannot be stored: {error}") from None


def read(what: str, stored: object, kind: Any) -> Any:
    """Convert a stored value to the type of its annotation. Raises BadValue if it does not fit."""
    if kind is Any:
        return stored
    try:
        return msgspec.convert(stored, kind, str_keys=True, dec_hook=_load)
    except (msgspec.ValidationError, ValueError, TypeError, NotImplementedError) as error:
        raise BadValue(f"{what} does not fit: {error}") from None


def _dump(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise NotImplementedError(
            f"it is or holds {kind_of(value)}; use JSON values, bytes, dataclasses, msgspec structs or pydantic models"
        )
    return dump(mode="json")


def _load(kind: type, value: object) -> object:
    if kind is object:
        return value
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"values cannot be converted to the annotation {kind.__name__}")


class CallOptions(TimedOptions, total=False):
    """Put options that `.put` accepts besides the arguments."""

    timeout: Seconds | None


# Keywords that `.put` treats as put options. `id` is not one: no worker takes from the kinds that accept it.
PUT_OPTIONS = frozenset(CallOptions.__annotations__) - {"id"}
# A put option that may also be a parameter: then `.put(at=…)` sets the parameter, and `.options(at=…)` the option.
SHARED_NAME = "at"


class Positional(NamedTuple):
    """Positional and keyword arguments that were put by handler name, without knowing the parameters."""

    args: object
    kwargs: object


def stored_arguments(data: Mapping[str, object]) -> object:
    """The arguments of the call that a task describes, for `Arguments.call`."""
    args = data.get("args", {})
    return Positional(args, data["kwargs"]) if "kwargs" in data else args


class Arguments:
    """Checks and stores the arguments of one function, by its annotations."""

    def __init__(self, name: str, function: Callable[..., object], *, batch: bool = False) -> None:
        self._batch = batch  # the function receives a list with one argument per task
        self._name = name
        self._what = f"an argument of {name}"
        self._function = function
        self._signature = _signature(name, function)
        self._parameters = list(self._signature.parameters.values())
        _check(name, self._parameters)
        if batch and (len(self._parameters) != 1 or self._first() is None):
            raise BadValue(
                f"{name} is a batch handler with parameters {self._signature}: give it one parameter, a list"
            )
        plain = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = all(parameter.kind in plain for parameter in self._parameters)
        self._names = [parameter.name for parameter in self._parameters]
        self.options = PUT_OPTIONS.difference(self._names)
        self._needed = sum(parameter.default is Parameter.empty for parameter in self._parameters)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The resolved annotations of parameters and result, on first use, so that forward references work.

        For a batch handler, those of one task.
        """
        found = hints(self._name, self._function)
        return {name: self._of_one(name, kind) for name, kind in found.items()} if self._batch else found

    def _of_one(self, name: str, kind: Any) -> Any:
        """The element type of a list annotation."""
        if kind in (list, Any) or (name == "return" and kind is type(None)):
            return type(None) if kind is type(None) else Any
        lists = [part for part in (kind, *get_args(kind)) if get_origin(part) is list]  # also of list[R] | None
        if not lists:
            raise BadValue(f"{name} of the batch handler {self._name} is {kind}: annotate it as list[…]")
        return get_args(lists[0])[0]

    @cached_property
    def _struct(self) -> type[msgspec.Struct]:
        fields = [self._field(parameter) for parameter in self._parameters]
        return msgspec.defstruct(f"Arguments of {self._name}", fields, kw_only=True, forbid_unknown_fields=True)

    @cached_property
    def _rest(self) -> type[msgspec.Struct]:
        """The arguments without the first."""
        fields = [self._field(parameter) for parameter in self._parameters[1:]]
        return msgspec.defstruct(f"Arguments of {self._name}", fields, kw_only=True, forbid_unknown_fields=True)

    def _field(self, parameter: Parameter) -> tuple[str, Any, Any]:
        kind: Any = self.hints.get(parameter.name, Any)
        if parameter.kind is Parameter.VAR_POSITIONAL:
            return parameter.name, GenericAlias(list, (kind,)), msgspec.field(default_factory=list)
        if parameter.default is Parameter.empty:
            return parameter.name, kind, msgspec.field()
        return parameter.name, kind, msgspec.field(default_factory=lambda: parameter.default)

    def split(self, given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
        """Split the keywords of a put into arguments of the function and put options."""
        keywords = {name: value for name, value in given.items() if name not in self.options}
        return keywords, {name: value for name, value in given.items() if name in self.options}

    def store(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The stored form of a call: each given argument by name. Raises BadValue if one does not fit."""
        stored = self._stored(self._bind(args, kwargs))
        self._read(stored)
        return stored

    def _stored(self, bound: Mapping[str, object]) -> dict[str, object]:
        stored: dict[str, object] = {}
        for name, value in bound.items():
            kind = self.hints.get(name, Any)
            if isinstance(value, tuple) and self._signature.parameters[name].kind is Parameter.VAR_POSITIONAL:
                stored[name] = [store(f"{self._name}.put: {name}", item, kind) for item in value]
            else:
                stored[name] = store(f"{self._name}.put: {name}", value, kind)
        return stored

    def store_rest(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Like `store`, without the first positional argument: `core.chain` inserts it later, at `first_place`."""
        first = self._first()
        if first is None:
            raise BadValue(
                f"{self._name} takes no positional argument, so it cannot receive the previous result: "
                f"use {self._name}.call(…).without_result()"
            )
        stored = self._stored(self._bind((None, *args), kwargs))
        if first.kind is Parameter.VAR_POSITIONAL:
            del stored[first.name][0]  # type: ignore[attr-defined]
            self._read(stored)
        else:
            del stored[first.name]
            read(self._what, stored, self._rest)
        return stored

    def first_place(self) -> str:
        """Where to insert the first positional argument into `store_rest`'s result: the value of `Link.into`."""
        first = self._first()
        assert first is not None, "store_rest has refused it"
        return f"*{first.name}" if first.kind is Parameter.VAR_POSITIONAL else first.name

    def _first(self) -> Parameter | None:
        first = self._parameters[0] if self._parameters else None
        return None if first is None or first.kind is Parameter.KEYWORD_ONLY else first

    def _bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Mapping[str, object]:
        if self._positional and not kwargs and self._needed <= len(args) <= len(self._names):
            return dict(zip(self._names, args, strict=False))  # as below, in a tenth of the time
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BadValue(f"{self._name}.put: {error}; its parameters are {self._signature}") from None

    def must_need_none(self) -> None:
        """Raise BadValue if the function cannot be called without arguments."""
        try:
            self._signature.bind()
        except TypeError as error:
            raise BadValue(f"schedules call {self._name} without arguments: {error}; give it a default") from None

    def call(self, function: Callable[..., Any], stored: object) -> Any:
        """Call the function with stored arguments. Raises Bury, without calling it, if they do not fit.

        For a batch handler, `stored` is a list with the arguments of each task. Raises BadValue if one of several does
        not fit, so that the caller can run the tasks one by one.
        """
        several = cast("list[object]", stored) if self._batch else [stored]
        try:
            read = [astuple(self._read(self._by_name(each))) for each in several]
        except BadValue as error:
            if len(several) > 1:
                raise
            raise Bury(failure(error)) from None  # a retry would not help
        if self._batch:
            return function([each[0] for each in read])
        given = read[0]
        if self._positional:
            return function(*given)
        args: list[object] = []
        keywords: dict[str, object] = {}
        for parameter, value in zip(self._parameters, given, strict=True):
            if parameter.kind is Parameter.VAR_POSITIONAL:
                args += value
            elif parameter.kind is Parameter.KEYWORD_ONLY:
                keywords[parameter.name] = value
            else:
                args.append(value)
        return function(*args, **keywords)

    def _by_name(self, stored: object) -> object:
        """Convert stored arguments to a dict by name; those put by handler name may be positional."""
        keywords: dict[str, object] = {}
        match stored:
            case list(args):
                pass
            case Positional(list(args), dict(keywords)):
                pass
            case Positional():
                raise BadValue(f"{self._what} does not fit: args is not a list, or kwargs is not a dict")
            case _:
                return stored
        try:
            bound = self._signature.bind(*args, **keywords).arguments
        except TypeError as error:
            raise BadValue(f"{self._what} does not fit: {error}; its parameters are {self._signature}") from None
        return {name: list(value) if isinstance(value, tuple) else value for name, value in bound.items()}

    def _read(self, stored: object) -> msgspec.Struct:
        found: msgspec.Struct = read(self._what, stored, self._struct)
        return found


class UnknownArguments(Arguments):
    """The arguments of a function that is not imported here: the worker binds and checks them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.options = PUT_OPTIONS

    @cached_property
    def hints(self) -> dict[str, Any]:
        """Return nothing: the annotations are not known here."""
        return {}

    def store(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The stored form of a call: `args` is a dict of keywords, or a list with the keywords in `kwargs`."""
        what = f"an argument of {self._name}.put"
        named = {name: store(what, value, object) for name, value in kwargs.items()}
        if not args:
            return {"args": named}
        stored: dict[str, object] = {"args": [store(what, value, object) for value in args]}
        return {**stored, "kwargs": named} if named else stored

    def store_rest(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Like `store`, but `args` is always a list; the first argument is inserted at its front later."""
        stored = self.store((None, *args), kwargs)
        del stored["args"][0]  # type: ignore[attr-defined]
        return stored

    def first_place(self) -> str:
        """The front of the list."""
        return ""

    def must_need_none(self) -> None:
        """Accept the function, because only the worker knows its parameters."""


def _signature(name: str, function: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise BadValue(f"the parameters of {name} cannot be read ({error}): wrap it in a def that names them") from None


def _check(name: str, parameters: Sequence[Parameter]) -> None:
    for parameter in parameters:
        if parameter.kind is Parameter.VAR_KEYWORD:
            raise BadValue(
                f"{name} accepts any keyword (**{parameter.name}), so .put cannot tell its arguments from "
                "put options: name its parameters"
            )
        if parameter.name in PUT_OPTIONS and parameter.name != SHARED_NAME:
            raise BadValue(
                f"parameter {parameter.name} of {name} has the name of a put option: rename it "
                f"(put options are {', '.join(sorted(PUT_OPTIONS))})"
            )

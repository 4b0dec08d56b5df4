"""Arguments and results between Python and JSON, by annotation. Nothing stored is imported, called or evaluated."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec

from penstock.core import codec
from penstock.core.names import kind_of
from penstock.errors import BadValue

_ATOMS = frozenset({str, int, float, bool, type(None)})


def hints(what: str, function: object) -> dict[str, Any]:
    """The annotations of a function, resolved."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise BadValue(
            f"an annotation of {what} cannot be resolved ({error}): import its names where the module runs, "
            "not for type checking alone, and not inside a function"
        ) from None


def store(what: str, value: object, kind: object) -> object:
    """The value made of JSON types, for a place of that annotation; BadValue when it cannot be."""
    if type(value) in _ATOMS or kind is Any:
        return value  # without an annotation nothing could bring back what it was: the codec refuses the rest
    try:
        return codec.lists(msgspec.to_builtins(value, str_keys=True, enc_hook=_dump))
    except (TypeError, NotImplementedError, RecursionError, ValueError) as error:
        raise BadValue(f"{what} cannot be stored: {error}") from None


def read(what: str, stored: object, kind: Any) -> Any:
    """What `store` was given, as its annotation says; BadValue when it does not fit."""
    if kind is Any:
        return stored
    try:
        return msgspec.convert(stored, kind, str_keys=True, dec_hook=_load)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise BadValue(f"{what} does not fit: {error}") from None


def _dump(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise NotImplementedError(
            f"it is or holds {kind_of(value)}; use JSON values, bytes, dataclasses, msgspec structs or pydantic models"
        )
    return dump(mode="json")


def _load(kind: type, value: object) -> object:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"the annotation {kind.__name__} is none that data can have")

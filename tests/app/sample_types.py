"""Types of arguments and results in the tests. Handlers resolve their annotations in this module."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pydantic


@dataclass
class Mail:
    to: str
    tags: tuple[str, ...] = ()


class Point(msgspec.Struct):
    x: int
    y: int = 0


class User(pydantic.BaseModel):
    name: str
    age: int = 0

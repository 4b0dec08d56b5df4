"""Types that arguments and results have in the tests; annotations are resolved where the module stands."""

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

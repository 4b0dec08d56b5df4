"""A tube as the SQL stores keep its declaration: kind and options as JSON."""

from __future__ import annotations

import msgspec

from penstock.core.kind import Kind
from penstock.core.options import Tube, decode_given, make_tube
from penstock.errors import StoreCorrupt


def declared_tube(no: int, name: str, kind: str, given: str) -> Tube:
    """The tube of a stored row; StoreCorrupt where that says nothing that a tube could be."""
    try:
        return make_tube(no, name, msgspec.json.decode(kind, type=Kind), decode_given(given))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise StoreCorrupt(f"the declaration of tube {name} cannot be read ({error}): restore a backup") from error

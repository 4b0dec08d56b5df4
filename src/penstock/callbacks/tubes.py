"""Where the callbacks of a store are: tubes that were made for them, and others in which one is seen."""

from __future__ import annotations

from penstock.broker.broker import Broker
from penstock.core.options import Tube
from penstock.core.select import Find

# How many ready tasks of a tube are looked at.
LOOKED_AT = 100


def callback_tubes(broker: Broker) -> list[str]:
    """The names of tubes whose tasks have a callback by default, or among whose first ready tasks one has.

    Only looks, so that tasks without a callback are not handed out for nothing.
    """
    tubes = broker.runtime.store.load_tubes()
    return [tube.name for tube in tubes if tube.kind.leased and _has_callbacks(broker, tube)]


def _has_callbacks(broker: Broker, tube: Tube) -> bool:
    if tube.callback is not None:
        return True
    runtime = broker.runtime
    runtime.apply_due(tube)
    return any(record.callback is not None for record in runtime.store.find(tube, Find("r", 0, LOOKED_AT)))

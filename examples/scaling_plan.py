"""Plan a Redis Cluster for a rate of tasks: real placement of shards, simulated queues. Needs only Python.

    python examples/scaling_plan.py                        # a million tasks a second
    python examples/scaling_plan.py --rate 200000 --tubes 4 --shards 16

The costs are those of docs/scaling.md, measured by `python -m bench --only cost`; pass your own. A shard
is in the slot of its hash tag, and each node has an equal range of the slots, as in a new cluster.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from binascii import crc_hqx
from collections import Counter
from dataclasses import dataclass
from statistics import quantiles

SLOTS = 16_384


@dataclass(frozen=True)
class Plan:
    """The input of a plan. Costs are microseconds of CPU for one task; batches are tasks per call."""

    rate: float
    tubes: int
    shards: int
    busy: float
    put_us: float
    run_us: float
    producer_us: float
    worker_us: float
    put_batch: int
    take_batch: int
    seconds: float

    @property
    def node_us(self) -> float:
        """The CPU time of a node for one task: its put, its take and its ack."""
        return self.put_us + self.run_us


def shards_per_node(plan: Plan, nodes: int) -> list[int]:
    """Count the shards on each node. Stored tubes have consecutive numbers; a sharded tube uses N + 1 of them."""
    numbers = (1 + tube * (plan.shards + 1) + 1 + shard for tube in range(plan.tubes) for shard in range(plan.shards))
    slots = (crc_hqx(f"penstock:{number}".encode(), 0) % SLOTS for number in numbers)
    found = Counter(slot * nodes // SLOTS for slot in slots)
    return [found[node] for node in range(nodes)]


def nodes_needed(plan: Plan) -> int:
    """Return the size of the smallest cluster whose busiest node uses at most the share `busy` of its core."""
    whole = plan.rate * plan.node_us / 1e6  # seconds of CPU in a second
    nodes = max(1, math.ceil(whole / plan.busy))
    while max(shards_per_node(plan, nodes)) / (plan.tubes * plan.shards) * whole > plan.busy:
        nodes += 1
    return nodes


def simulate(plan: Plan, share: float) -> tuple[float, list[float]]:
    """Simulate a node with this share of the work. Returns its load and the milliseconds that each call took.

    Calls arrive at random and are served one after the other, as Redis does it. A batch of puts is followed by the
    takes of its tasks and, when these have run, by their acks.
    """
    chance = random.Random(1)
    rate = plan.rate * share
    put = plan.put_us * plan.put_batch / 1e6
    half = plan.run_us / 2 * plan.take_batch / 1e6  # a take, or an ack
    calls: list[tuple[float, float, int]] = []
    at = 0.0
    while (at := at + chance.expovariate(rate / plan.put_batch)) < plan.seconds:
        heapq.heappush(calls, (at, put, plan.put_batch))
    free = worked = 0.0
    ready = 0
    waits = []
    while calls:
        arrived, takes, tasks = heapq.heappop(calls)
        free = max(free, arrived) + takes
        worked += takes
        waits.append((free - arrived) * 1000)
        ready += tasks
        while ready >= plan.take_batch:
            ready -= plan.take_batch
            heapq.heappush(calls, (free + chance.expovariate(1 / 0.01), half, 0))  # taken within 10 ms
            heapq.heappush(calls, (free + 0.01 + chance.expovariate(1 / 0.01), half, 0))  # acked after 10 ms more
    return worked / max(free, plan.seconds), waits


def report(plan: Plan) -> list[str]:
    """Return the lines of the report."""
    nodes = nodes_needed(plan)
    shards = shards_per_node(plan, nodes)
    whole = plan.tubes * plan.shards
    busy, waits = simulate(plan, max(shards) / whole)
    cuts = quantiles(waits, n=100)
    cores = plan.rate * plan.node_us / 1e6
    return [
        f"{plan.rate:,.0f} tasks a second, {plan.node_us:.1f} µs of a node for each: {cores:.1f} cores",
        f"{nodes} nodes for {plan.tubes} tubes of {plan.shards} shards: {min(shards)} to {max(shards)} on each node",
        f"the busiest node: {plan.rate * max(shards) / whole:,.0f} tasks a second, {busy:.0%} busy",
        f"a call to it takes {cuts[49]:.2f} ms (median), {cuts[98]:.2f} ms (99 %)",
        f"{math.ceil(plan.rate * plan.producer_us / 1e6 / plan.busy)} producer processes, "
        f"{math.ceil(plan.rate * plan.worker_us / 1e6 / plan.busy)} worker processes, and what the handlers need",
    ]


def main() -> None:
    """Print the plan for the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1_000_000, help="tasks a second")
    parser.add_argument("--tubes", type=int, default=16)
    parser.add_argument("--shards", type=int, default=64, help="of each tube")
    parser.add_argument("--busy", type=float, default=0.6, help="the share of a core that may be used")
    parser.add_argument("--put-us", type=float, default=3.3, help="server: put, in batches")
    parser.add_argument("--run-us", type=float, default=6.2, help="server: take and ack, by a worker")
    parser.add_argument("--producer-us", type=float, default=16.7)
    parser.add_argument("--worker-us", type=float, default=15.2, help="without the handler's own work")
    parser.add_argument("--put-batch", type=int, default=1000)
    parser.add_argument("--take-batch", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0, help="simulated")
    print("\n".join(report(Plan(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()

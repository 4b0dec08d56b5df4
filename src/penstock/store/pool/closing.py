"""Tubes that leave a pool: closed in the index, then sealed in the vault, both under the lock of the tube's row.

A closed tube has an epoch of its own, so that no call finds it; those who read it know that epoch. One that is closed
and not sealed, once nobody has the lock, was left so by a crash, and whoever meets it opens it again.
"""

from __future__ import annotations

from penstock.core.options import Tube
from penstock.core.transfer import is_sealed
from penstock.store.pool.runner import PoolRunner
from penstock.store.pool.vault import Shelf, Vault
from penstock.store.redis.tubes import make_declared


def closed(epoch: int | str) -> str:
    """The epoch of a tube that was closed in this one."""
    return f"{epoch}>"


def epoch_of(tube: Tube, epoch: int) -> str:
    """The epoch of a tube that is whole in this one."""
    return closed(epoch) if is_sealed(tube) else str(epoch)


def is_closed(runner: PoolRunner, tube: Tube, epoch: int | str) -> bool:
    """Whether it was closed in that epoch."""
    meta = runner.keys.name(tube.no, "meta")
    return runner.servers.command(meta, b"HGET", meta, b"epoch") == closed(epoch).encode()


def was_sealed(runner: PoolRunner, vault: Vault, tube: Tube, epoch: int | str) -> bool:
    """Whether a closed tube was sealed, once whoever closed it has ended; where it was not, it is open again."""

    def open_again(shelf: Shelf) -> None:
        if not is_sealed_in(shelf):
            with runner.servers.strictly():
                runner.on_tag("reopen_index", shelf.no, closed(epoch), epoch, idempotent=True)

    shelf = vault.settle_down(tube.no, open_again)
    return shelf is None or is_sealed_in(shelf)


def is_sealed_in(shelf: Shelf) -> bool:
    """Whether the vault says that a tube was moved away."""
    return is_sealed(make_declared(shelf.no, shelf.declared))

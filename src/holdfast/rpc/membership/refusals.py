"""Messages to workers that wait for a world of another size, through a store that all share.

    refused/LIFE   the entry of the worker that sends the refusal, for REFUSED_S

A worker that waits for a world leaves when it learns of another size, and its own entry vanishes.
So the other worker, if it reads the entries later, could not learn of the mismatch from them alone.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.errors import HoldfastError, PeerViolation, TimeoutExpired, Unavailable
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.membership.entry import decode_entry, encode_entry
from holdfast.store.store import Store

__all__ = ["Refusals"]

REFUSED_S = 60.0
WITHIN_S = 2.0


class Refusals:
    """The refusals that workers of one job send each other."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def refuse(self, other: Contact, me: Contact) -> None:
        """Tell a worker that this one waits for a world of another size, if the store can."""
        with suppress(HoldfastError):
            lease = self._store.grant_lease(REFUSED_S, timeout=WITHIN_S)
            self._store.set(_key(other), encode_entry(me), lease=lease, timeout=WITHIN_S)

    def refused_by(self, me: Contact) -> Contact | None:
        """Return a worker that has refused this one; None if none has, or the store fails."""
        with suppress(TimeoutExpired, Unavailable, PeerViolation):
            refusal = self._store.get(_key(me), timeout=WITHIN_S)
            return None if refusal is None else decode_entry(refusal)
        return None


def _key(worker: Contact) -> str:
    return f"refused/{worker.incarnation}"

"""Words to workers that wait for a world of another size."""

from __future__ import annotations

from holdfast.rpc.client.contact import Contact
from holdfast.rpc.membership.refusals import Refusals
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.store.memory import MemoryStore


def contact(name: str, size: int) -> Contact:
    return Contact(WorkerInfo(name, 1), f"{name}-life", "machine", "unix", "", size)


ME, OTHER = contact("me", 2), contact("other", 3)


def test_a_refused_worker_learns_which_worker_refused_it() -> None:
    with MemoryStore() as store:
        refusals = Refusals(store)
        assert refusals.refused_by(ME) is None
        refusals.refuse(ME, OTHER)
        refusals.refuse(ME, OTHER)  # or another one does
        assert refusals.refused_by(ME) == OTHER
        assert refusals.refused_by(OTHER) is None
        store.set("refused/me-life", b"junk")
        assert refusals.refused_by(ME) is None


def test_telling_through_a_closed_store_is_no_error() -> None:
    store = MemoryStore()
    store.close()
    Refusals(store).refuse(ME, OTHER)

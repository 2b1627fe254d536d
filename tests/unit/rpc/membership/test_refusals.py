"""Words to workers that wait for a world of another size."""

from __future__ import annotations

from holdfast.rpc.client.contact import Contact
from holdfast.rpc.membership.refusals import Refusals
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.store.memory import MemoryStore


def contact(name: str, size: int) -> Contact:
    return Contact(WorkerInfo(name, 1), f"{name}-life", "machine", "unix", "", size)


ME, OTHER = contact("me", 2), contact("other", 3)


def test_the_one_that_is_told_hears_by_whom() -> None:
    with MemoryStore() as store:
        refusals = Refusals(store)
        assert refusals.heard(ME) is None
        refusals.tell(ME, OTHER)
        refusals.tell(ME, OTHER)  # or another one does
        assert refusals.heard(ME) == OTHER
        assert refusals.heard(OTHER) is None
        store.set("refused/me-life", b"junk")
        assert refusals.heard(ME) is None


def test_a_store_that_is_closed_keeps_nobody() -> None:
    store = MemoryStore()
    store.close()
    Refusals(store).tell(ME, OTHER)

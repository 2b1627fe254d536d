"""How many workers a world has."""

from __future__ import annotations

from holdfast.rpc.client.contact import Contact
from holdfast.rpc.membership.world_size import WorldSize
from holdfast.rpc.wire.worker_info import WorkerInfo


def contact(name: str, size: int) -> Contact:
    return Contact(WorkerInfo(name, 1), f"{name}-life", "machine", "unix", "", size)


ME, SAME, ANY, OTHER = contact("me", 2), contact("same", 2), contact("any", 0), contact("other", 3)
NEED = "all workers of a job need the same"


def test_workers_with_the_same_world_size_or_none_agree() -> None:
    size = WorldSize(ME, set(), 0.0)
    assert [size.differs(one) for one in (ME, SAME, ANY, OTHER)] == [False, False, False, True]
    assert size.other([ME, SAME, ANY], 1.0) is None
    assert size.others([ME, SAME, ANY]) == ""


def test_a_worker_that_comes_later_is_refused_at_once() -> None:
    size = WorldSize(ME, {"same-life"}, 10.0)
    assert (size.comes(OTHER), size.in_doubt) == (True, False)
    assert size.other([SAME, OTHER], 0.0) is OTHER
    assert size.mismatch(OTHER) == f"world_size 2: {OTHER.info} has world_size 3; {NEED}"
    assert size.others([SAME, OTHER]) == "; other has world_size 3"


def test_an_earlier_worker_is_refused_once_its_lease_must_have_ended() -> None:
    size = WorldSize(ME, {"other-life"}, 10.0)
    assert (size.comes(OTHER), size.in_doubt) == (False, True)
    assert size.other([OTHER], 9.9) is None
    assert size.other([OTHER], 10.0) is OTHER

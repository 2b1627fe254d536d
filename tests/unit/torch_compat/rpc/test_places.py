"""The addresses of workers, by a store of torch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.clock import Deadline
from holdfast.errors import PeerLost, TimeoutExpired, Unavailable
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.torch_compat.rpc.places import Places
from tests.unit.torch_compat.group import at_once


def soon() -> Deadline:
    return Deadline.after(30.0)


def contact(name: str, number: int) -> Contact:
    return Contact(WorkerInfo(name, number), f"life-of-{name}-{number}", "machine", "\0socket", "")


@pytest.fixture
def store() -> Any:
    made = dist.HashStore()
    made.set_timeout(timedelta(seconds=30))
    return made


def entered(store: Any, *names: str) -> list[Places]:
    places = [Places(store, len(names)) for _ in names]
    contacts = [contact(name, number) for number, name in enumerate(names)]
    at_once(
        *(
            lambda one=one, who=who: one.enter(who)
            for one, who in zip(places, contacts, strict=True)
        )
    )
    return places


def test_all_of_a_fixed_group_know_each_other(store: Any) -> None:
    for one in entered(store, "a", "b", "c"):
        assert [each.info.name for each in one.everybody()] == ["a", "b", "c"]
        assert one.find("b") == one.find(1) == one.find(WorkerInfo("b", 1)) == contact("b", 1)
        assert one.find_incarnation("life-of-c-2") == contact("c", 2)


@pytest.mark.parametrize("unknown", ["x", 7])
def test_an_unknown_worker_is_named(store: Any, unknown: Any) -> None:
    (one,) = entered(store, "a")
    with pytest.raises(RuntimeError, match=f"{unknown} could not find destination"):
        one.find(unknown)


def test_a_store_that_is_lost_is_an_error_that_core_knows(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost:
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("Failed to recv")

    (one,) = entered(store, "a")
    monkeypatch.setattr(one, "_store", Lost())
    for ask in (one.find_incarnation, one.devices):
        with pytest.raises(Unavailable, match="the group's store: Failed to recv"):
            ask("life-of-b-1")
    assert one.find_incarnation("life-of-a-0") == contact("a", 0)


def test_a_life_that_we_have_not_met_is_looked_for_in_the_store(store: Any) -> None:
    first, second = Places(store, None), Places(store, None)
    first.enter(contact("a", 0))
    second.enter(contact("b", 1))
    assert first.find_incarnation("life-of-b-1") == contact("b", 1)
    with pytest.raises(PeerLost, match="no such worker is known"):
        first.find_incarnation("life-of-x")


def test_a_name_belongs_to_one_worker(store: Any) -> None:
    with pytest.raises(RuntimeError, match="RPC worker name a is not unique. Workers 0 and 1"):
        entered(store, "a", "a")


def test_fixed_and_open_groups_do_not_mix(store: Any) -> None:
    Places(store, None).enter(contact("a", 0))
    with pytest.raises(RuntimeError, match="mixes statically and dynamically initialized members"):
        Places(store, 2).enter(contact("b", 1))


def test_workers_come_and_go(store: Any) -> None:
    first, second = Places(store, None), Places(store, None)
    first.enter(contact("a", 0))
    second.enter(contact("b", 1))
    first.came("b", 1)
    assert [each.info.name for each in first.everybody()] == ["a", "b"]
    second.leave(contact("b", 1))
    assert first.went("b") == contact("b", 1)
    assert first.went("b") is None
    with pytest.raises(PeerLost):
        first.find_incarnation("life-of-b-1")
    third = Places(store, None)
    third.enter(contact("c", 2))
    assert [each.info.name for each in third.everybody()] == ["a", "c"]


def test_leaving_together_goes_on_until_no_worker_has_been_busy(store: Any) -> None:
    first, second = entered(store, "a", "b")
    assert (
        at_once(lambda: first.meet(True, soon()), lambda: second.meet(False, soon())) == [True] * 2
    )
    assert (
        at_once(lambda: first.meet(False, soon()), lambda: second.meet(False, soon()))
        == [False] * 2
    )
    at_once(lambda: first.part(0, soon()), lambda: second.part(1, soon()))


def test_a_worker_that_does_not_come_to_leave_is_not_waited_for_forever(store: Any) -> None:
    first, _ = entered(store, "a", "b")
    with pytest.raises(TimeoutExpired, match="not all 2 workers"):
        first.meet(False, Deadline.after(0.05))


def test_in_an_open_group_no_worker_is_waited_for(store: Any) -> None:
    one = Places(store, None)
    one.enter(contact("a", 0))
    assert one.meet(True, soon()) is False
    one.part(0, soon())


def test_workers_tell_which_gpus_they_see(store: Any) -> None:
    one, other = entered(store, "a", "b")
    assert other.devices("life-of-a") == []
    one.show_devices("life-of-a", ["x", "y"])
    assert other.devices("life-of-a") == other.devices("life-of-a") == ["x", "y"]

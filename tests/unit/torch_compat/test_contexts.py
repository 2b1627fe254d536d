"""Contexts of distributed autograd."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rpc.messages import Kind
from holdfast.torch_compat.contexts import CONTEXTS, Contexts, release


def of_worker(number: int) -> Contexts:
    contexts = Contexts()
    contexts.begin(number)
    return contexts


class Told:
    """An agent that only remembers whom it told what; worker 9 is gone."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.places = self.core = self

    def find(self, worker: int) -> Any:
        if worker == 9:
            raise UsageError("worker 9: gone")
        return SimpleNamespace(incarnation=f"life of {worker}")

    def request(self, to: str, kind: Kind, value: Any, timeout: Any, retries: Any) -> None:
        assert retries is not None
        self.told.append((to, kind, value))


def test_numbers_begin_with_their_makers_and_are_used_once() -> None:
    """Proves CX-1."""
    contexts = of_worker(3)
    seen = []
    for _ in range(5):
        context = contexts.make()
        seen.append(context._context_id())
        assert contexts.take(context.number) is context
    assert [number >> 48 for number in seen] == [3] * 5
    messages = [contexts.new_message() for _ in range(5)]
    assert [number >> 48 for number in messages] == [3] * 5
    assert len(set(seen)) == len(set(messages)) == 5
    assert contexts.largest == (3 << 48) + 2**48 - 1


def test_a_worker_has_one_number() -> None:
    contexts = Contexts()
    with pytest.raises(RuntimeError, match="Need to initialize distributed autograd"):
        contexts.make()
    contexts.begin(1)
    contexts.begin(1)
    with pytest.raises(RuntimeError, match="worker_id 1; cannot become 2"):
        contexts.begin(2)
    with pytest.raises(RuntimeError, match="got -1"):
        Contexts().begin(-1)


def test_a_thread_works_in_one_context_of_its_own() -> None:
    contexts = of_worker(0)
    with pytest.raises(RuntimeError, match="doesn't have a valid autograd context"):
        contexts.current()
    mine = contexts.make()
    assert contexts.current() is contexts.here() is mine
    with pytest.raises(RuntimeError, match="Already have an autograd context id"):
        contexts.make()
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(contexts.here()))
    thread.start()
    thread.join(30)
    assert elsewhere == [None]
    assert contexts.take(mine.number) is mine
    assert contexts.here() is None
    assert contexts.take(mine.number) is None


def test_a_thread_works_in_the_context_of_a_caller_for_a_while() -> None:
    contexts = of_worker(0)
    theirs = contexts.join(7)
    assert contexts.join(7) is contexts.find(7) is theirs
    with contexts.within(7):
        assert contexts.here() is theirs
        assert contexts.take(7) is theirs
        assert contexts.here() is None
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 7"):
        contexts.find(7)
    with contexts.within(7), pytest.raises(RuntimeError, match="with id: 7"):
        contexts.current()


def test_what_is_there_is_counted_by_torchs_names() -> None:
    contexts = of_worker(0)
    contexts.join(1).passes[5] = "a pass"
    contexts.join(2)
    assert contexts.counts() == {
        "num_current_backward_passes": "1",
        "num_autograd_contexts": "2",
    }


def test_all_passes_can_be_ended() -> None:
    failed: list[str] = []
    contexts = of_worker(0)
    contexts.join(1).passes[5] = SimpleNamespace(fail=lambda error: failed.append(str(error)))
    contexts.join(2)
    contexts.end_passes("the end")
    assert failed == ["the end"]


def test_who_releases_a_context_tells_those_that_have_it_once() -> None:
    """Proves CX-2, CX-3."""
    failed: list[str] = []
    context = CONTEXTS.join(77)
    context.workers.update({2, 9, 4})
    context.passes[1] = SimpleNamespace(fail=lambda error: failed.append(str(error)))
    agent = Told()
    assert release(agent, 77)
    kind = Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ
    assert agent.told == [("life of 2", kind, 77), ("life of 4", kind, 77)]
    assert failed == ["autograd context 77 was released during its backward pass"]
    assert context.is_released
    assert not release(agent, 77)
    assert len(agent.told) == 2

"""Contexts of distributed autograd."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import CallTimedOut, PeerLost, UsageError
from holdfast.rpc.client.future import Future
from holdfast.rpc.wire.hello import Purpose, WorkerHello
from holdfast.rpc.wire.messages import Kind
from holdfast.torch_compat.autograd.contexts import (
    CONTEXTS,
    GATHER_S,
    Contexts,
    Releases,
    left,
    release,
    share,
)


def of_worker(number: int) -> Contexts:
    contexts = Contexts()
    contexts.begin(number)
    return contexts


class Told:
    """An agent that only remembers what it told each worker; worker 9 is gone.

    `answers` are what workers return, or what they fail with.
    """

    def __init__(self, answers: dict[int, Any] | None = None) -> None:
        self.told: list[Any] = []
        self.places = self.core = self._scheduler = self
        self.releases = Releases(self)
        self._answers = answers or {}

    def submit(self, task: Callable[[], None], delay_s: float) -> None:
        assert delay_s == GATHER_S
        task()

    def find(self, worker: int) -> Any:
        if worker == 9:
            raise UsageError("worker 9: gone")
        return SimpleNamespace(incarnation=f"life of {worker}")

    def request(self, to: str, kind: Kind, value: Any, timeout: Any, retries: Any) -> None:
        assert retries is not None
        self.told.append((to, kind, value))

    def call_async(self, to: int, function: Any, args: Any) -> Future[Any]:
        self.find(to)
        self.told.append((to, function, args))
        future: Future[Any] = Future()
        answer = self._answers[to]
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


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


def test_passes_can_be_ended_all_or_those_of_one_worker() -> None:
    failed: list[str] = []

    def failing(asker: str) -> Any:
        return SimpleNamespace(asker=asker, fail=lambda error: failed.append(f"{asker}: {error}"))

    contexts = of_worker(0)
    contexts.join(1).passes.update({5: failing("a"), 6: failing("b")})
    contexts.join(2)
    contexts.end_passes(RuntimeError("lost"), "a")
    contexts.end_passes(RuntimeError("the end"))
    assert failed == ["a: lost", "a: the end", "b: the end"]


def test_releasing_a_context_tells_each_worker_that_has_it_once() -> None:
    """Proves CX-2, CX-3."""
    failed: list[str] = []
    context = CONTEXTS.join(77)
    context.workers.update({2, 9, 4})
    context.passes[1] = SimpleNamespace(fail=lambda error: failed.append(str(error)))
    agent = Told()
    assert release(agent, 77)
    kind = Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ
    assert sorted(agent.told) == [("life of 2", kind, [77]), ("life of 4", kind, [77])]
    assert failed == ["autograd context 77 was released during its backward pass"]
    assert context.is_released
    assert not release(agent, 77)
    assert len(agent.told) == 2


def test_one_message_tells_what_was_released_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves CX-2."""
    agent, due = Told(), []
    monkeypatch.setattr(agent, "submit", lambda task, delay_s: due.append(task))
    for number in (77, 78):
        CONTEXTS.join(number).workers.update({2, 3})
        assert release(agent, number, told_by=3)
    assert agent.told == []
    (task,) = due
    task()
    assert agent.told == [("life of 2", Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ, [77, 78])]
    CONTEXTS.join(79)
    assert release(agent, 79)  # of which no other worker knows
    assert due == [task]


# Workers that have disconnected.

LATER = 3 << 48
"""A context that worker 3 has made, and worker 2 has brought here."""


def hung_up(worker: int) -> WorkerHello:
    return WorkerHello(f"worker{worker}", worker, f"life of {worker}", "me", Purpose.PIPE)


@pytest.fixture
def brought() -> Iterator[int]:
    CONTEXTS.begin(0)
    CONTEXTS.join(LATER, 2).workers.add(4)
    yield LATER
    CONTEXTS.take(LATER)


@pytest.mark.parametrize("answer", [False, PeerLost("gone")])
def test_a_context_that_no_worker_would_release_is_released(brought: int, answer: object) -> None:
    """Proves CX-4."""
    agent = Told({3: answer})
    left(agent, hung_up(2))
    assert agent.told == [
        (3, share, (brought, 0)),
        ("life of 4", Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ, [brought]),
    ]
    with pytest.raises(RuntimeError, match="Could not find"):
        CONTEXTS.find(brought)


def test_a_context_whose_maker_has_left_the_group_is_released() -> None:
    """Proves CX-4."""
    CONTEXTS.begin(0)
    context = CONTEXTS.join(9 << 48, 2)
    left(Told(), hung_up(2))
    assert context.is_released


@pytest.mark.parametrize("answer", [True, CallTimedOut("it is slow")])
def test_a_context_that_its_maker_has_stays(brought: int, answer: object) -> None:
    """Proves CX-4."""
    left(Told({3: answer}), hung_up(2))
    assert CONTEXTS.find(brought).number == brought


def test_only_contexts_that_this_worker_brought_are_asked_about(brought: int) -> None:
    """Proves CX-4."""
    mine = CONTEXTS.join(7, 2)
    agent = Told()
    left(agent, hung_up(5))
    assert agent.told == []
    CONTEXTS.take(brought)
    left(agent, hung_up(2))  # of one that this worker has made it knows itself
    assert agent.told == []
    assert CONTEXTS.take(7) is mine


def test_passes_of_a_disconnected_worker_fail(brought: int) -> None:
    """Proves CX-5."""
    failed: list[str] = []
    one = SimpleNamespace(asker="life of 5", fail=lambda error: failed.append(str(error)))
    CONTEXTS.find(brought).passes[1] = one
    left(Told(), hung_up(6))
    assert failed == []
    left(Told(), hung_up(5))
    assert failed == ["worker5: Connection closed by peer (it had asked for a backward pass)"]
    CONTEXTS.find(brought).passes.clear()


def test_a_maker_that_is_asked_tells_of_the_release(brought: int) -> None:
    """Proves CX-4."""
    assert share(brought, 8)
    agent = Told()
    release(agent, brought)
    assert sorted(to for to, _, _ in agent.told) == ["life of 4", "life of 8"]
    assert not share(brought, 8)

"""Futures of torch for calls of ours."""

from __future__ import annotations

import gc
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.errors import PeerLost, UsageError
from holdfast.rpc.client.future import Future
from holdfast.torch_compat.rpc.futures import (
    CallFuture,
    OurFuture,
    as_torch_error,
    collect_all,
    follow,
)


class Later:
    """Keeps what is to be done later, until it is told to do it."""

    def __init__(self) -> None:
        self.kept: list[Callable[[], object]] = []

    def __call__(self, act: Callable[[], object]) -> None:
        self.kept.append(act)

    def run(self) -> None:
        kept, self.kept = self.kept, []
        for act in kept:
            act()


def made(read: Callable[[Any], Any] = lambda value: value) -> tuple[Future[Any], CallFuture, Later]:
    call: Future[Any] = Future()
    later = Later()
    return call, CallFuture(call, later, read), later


def test_it_is_a_future_of_torch_with_what_was_read() -> None:
    call, future, later = made(lambda value: value + 1)
    assert not future.done()
    call.set_result(1)
    assert not later.kept
    assert isinstance(future, torch.futures.Future)
    assert future.wait() == future.value() == 2


def test_what_reading_raises_is_the_answer() -> None:
    call, future, _ = made(lambda value: value["b"])
    call.set_result({"a": 1})
    with pytest.raises(RuntimeError, match="KeyError: 'b'"):
        future.wait()


def test_a_waiting_thread_drives_the_call_and_needs_no_other_thread() -> None:
    call, future, later = made()

    class Driver:
        def drive(self, done: Callable[[], bool], deadline: object) -> None:
            call.set_result("here")

    call.driver = Driver()
    assert future.wait() == "here"
    assert not later.kept


def test_what_follows_is_run_later() -> None:
    call, future, later = made()
    seen: list[Any] = []
    future.add_done_callback(lambda done: seen.append(done.value()))
    following = future.then(lambda done: done.value() * 2)
    call.set_result(3)
    assert not seen
    assert not future.done()
    later.run()
    assert seen == [3]
    assert following.wait() == 6


def test_what_follows_while_the_answer_is_read_runs_on_its_own_thread() -> None:
    threads: list[threading.Thread] = []
    ran_by: list[threading.Thread] = []

    def read(value: Any) -> Any:
        thread = threading.Thread(
            target=lambda: future.then(lambda _: ran_by.append(threading.current_thread()))
        )
        threads.append(thread)
        thread.start()
        return value

    call, future, later = made(read)
    call.set_result(3)
    threads[0].join(10)
    assert not later.kept
    assert ran_by == threads


def test_all_of_them_are_there_when_the_last_one_is() -> None:
    pairs = [made() for _ in range(3)]
    futures = [future for _, future, _ in pairs]
    together = collect_all([*futures])
    for number, (call, _, later) in enumerate(pairs):
        assert not together.done()
        call.set_result(number)
        later.run()
    assert [future.wait() for future in together.wait()] == [0, 1, 2]
    assert all(one is other for one, other in zip(together.wait(), futures, strict=True))


def test_the_first_error_is_told_while_others_are_open() -> None:
    _, open_one, _ = made()
    call, failing, later = made()
    together = collect_all([open_one, failing])
    call.set_exception(ValueError("no way"))
    later.run()
    with pytest.raises(ValueError, match="no way"):
        together.wait()


def test_a_future_of_futures_of_ours_fails_within_another_one_too() -> None:
    call, failing, later = made()
    _, open_one, _ = made()
    together = collect_all([collect_all([failing]), open_one])
    call.set_exception(ValueError("no way"))
    later.run()
    with pytest.raises(ValueError, match="no way"):
        together.wait()


def test_torchs_own_futures_are_left_to_torch() -> None:
    future = torch.futures.Future()
    future.set_result(1)
    together = collect_all([future])
    assert not isinstance(together, OurFuture)
    assert together.wait()[0].wait() == 1


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (PeerLost("gone"), PeerLost, "gone"),
        (UsageError("wrong"), RuntimeError, "wrong"),
        (ValueError("v"), ValueError, "v"),
        (TypeError("t"), TypeError, "t"),
        (KeyError("k"), RuntimeError, "KeyError: 'k'"),
    ],
)
def test_errors_are_those_that_torchs_users_expect(
    error: Exception, kind: type[Exception], text: str
) -> None:
    told = as_torch_error(error)
    assert type(told) is kind
    assert str(told) == text


class Told(RuntimeError):
    """An error that can be seen to go."""


def ask(future: Any) -> None:
    with pytest.raises(RuntimeError, match="no way"):
        future.wait()


def raised() -> Told:
    try:
        raise Told("no way")
    except Told as error:
        return error


def failed(error: Told) -> Any:
    future = torch.futures.Future()
    future.set_exception(error)
    return future


def is_gone(kept: weakref.ref[Any]) -> bool:
    gc.collect()
    return kept() is None


@pytest.mark.parametrize("is_read", [False, True], ids=["the call fails", "reading fails"])
def test_an_error_does_not_keep_the_future_of_its_call(is_read: bool) -> None:
    def read(value: Any) -> Any:
        raise Told("no way")

    call, future, _ = made(read)
    if is_read:
        call.set_result(1)
    else:
        call.set_exception(Told("no way"))
    ask(future)
    ask(future)
    seen = weakref.ref(future)
    del call, future
    assert is_gone(seen)


def test_an_error_does_not_keep_the_future_of_all() -> None:
    call, future, later = made()
    together = collect_all([future, failed(Told("no way"))])
    call.set_exception(Told("no way"))
    later.run()
    ask(together)
    seen = weakref.ref(together)
    del call, future, later, together
    assert is_gone(seen)


def test_an_error_of_torchs_future_does_not_keep_it_because_it_is_the_first_of_all() -> None:
    call, future, later = made()
    call.set_exception(Told("no way"))
    later.run()
    theirs = failed(raised())
    together = collect_all([theirs, future])
    later.run()
    ask(together)
    seen = weakref.ref(theirs)
    del call, future, later, theirs, together
    assert is_gone(seen)


def test_an_error_of_torchs_future_does_not_keep_it_because_one_of_ours_follows() -> None:
    theirs = failed(raised())
    ours = follow(theirs, lambda value: value)
    error = ours.exception(60)
    assert error is not None
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["raised"]
    seen = weakref.ref(theirs)
    del theirs, ours, error
    assert is_gone(seen)


def test_the_error_has_no_traceback_of_an_earlier_wait() -> None:
    call, future, _ = made()
    call.set_exception(Told("no way"))
    depths = []
    for _ in range(2):
        with pytest.raises(Told) as raised:
            future.wait()
        depths.append(len(raised.traceback))
    assert depths[0] == depths[1]


def test_an_error_that_cannot_be_copied_is_told_as_it_is() -> None:
    class Single(RuntimeError):
        def __reduce__(self) -> Any:
            raise TypeError("there is one of these")

    call, future, _ = made()
    call.set_exception(Single("no way"))
    for _ in range(2):
        with pytest.raises(Single, match="no way"):
            future.wait()


def test_notes_stay_with_an_error() -> None:
    error = KeyError("k")
    error.add_note("It was raised at w1")
    assert as_torch_error(error).__notes__ == ["It was raised at w1"]
    call, future, _ = made()
    call.set_exception(error)
    with pytest.raises(RuntimeError) as raised:
        future.wait()
    assert raised.value.__notes__ == ["It was raised at w1"]


def test_one_of_ours_follows_one_of_torchs() -> None:
    theirs = torch.futures.Future()
    ours = follow(theirs, lambda value: value + 1)
    thread = threading.Thread(target=theirs.set_result, args=(1,))
    thread.start()
    assert ours.wait(10) == 2
    thread.join(10)


def test_one_of_ours_fails_with_one_of_torchs() -> None:
    theirs = torch.futures.Future()
    ours = follow(theirs, lambda value: value)
    theirs.set_exception(KeyError("k"))
    with pytest.raises(RuntimeError, match="KeyError: 'k'"):
        ours.wait(10)

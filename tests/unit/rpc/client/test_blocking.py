"""What a thread releases before it blocks, and only what is its own."""

from __future__ import annotations

import threading

from holdfast.rpc.client.blocking import before_block, is_deep, pop_release, push_release


def test_a_thread_releases_its_work_before_it_blocks() -> None:
    given: list[str] = []
    before_block()
    before = push_release(lambda: given.append("mine"))
    try:
        other = threading.Thread(target=before_block)
        other.start()
        other.join()
        assert given == []
        before_block()
        assert given == ["mine"]
    finally:
        pop_release(before)
    before_block()
    assert given == ["mine"]


def test_it_gives_up_all_that_it_has_the_last_first() -> None:
    given: list[str] = []
    first = push_release(lambda: given.append("first"))
    second = push_release(lambda: given.append("second"))
    before_block()
    assert given == ["second", "first"]
    pop_release(second)
    pop_release(first)
    before_block()
    assert given == ["second", "first"]


def test_work_taken_on_during_a_wait_is_released_alone() -> None:
    given: list[str] = []
    outer = push_release(lambda: given.append("outer"))
    before_block()
    inner = push_release(lambda: given.append("inner"))
    before_block()
    assert given == ["outer", "inner"]
    pop_release(inner)
    before_block()
    assert given == ["outer", "inner"]
    pop_release(outer)


def test_a_stack_is_deep_when_it_is_half_full() -> None:
    def at(depth: int) -> bool:
        return at(depth - 1) if depth else is_deep()

    assert not is_deep()
    assert at(500)

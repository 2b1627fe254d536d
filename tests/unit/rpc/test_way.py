"""Making way: what a thread gives up before it blocks, and nobody else's."""

from __future__ import annotations

import threading

from holdfast.rpc.way import is_deep, make_way, rise, sit


def test_a_thread_gives_up_what_it_has_when_it_is_about_to_block() -> None:
    given: list[str] = []
    make_way()
    before = sit(lambda: given.append("mine"))
    try:
        other = threading.Thread(target=make_way)
        other.start()
        other.join()
        assert given == []
        make_way()
        assert given == ["mine"]
    finally:
        rise(before)
    make_way()
    assert given == ["mine"]


def test_it_gives_up_all_that_it_has_the_last_first() -> None:
    given: list[str] = []
    first = sit(lambda: given.append("first"))
    second = sit(lambda: given.append("second"))
    make_way()
    assert given == ["second", "first"]
    rise(second)
    rise(first)
    make_way()
    assert given == ["second", "first"]


def test_what_it_takes_on_while_it_waits_is_given_up_alone() -> None:
    given: list[str] = []
    outer = sit(lambda: given.append("outer"))
    make_way()
    inner = sit(lambda: given.append("inner"))
    make_way()
    assert given == ["outer", "inner"]
    rise(inner)
    make_way()
    assert given == ["outer", "inner"]
    rise(outer)


def test_a_stack_is_deep_when_it_is_half_full() -> None:
    def at(depth: int) -> bool:
        return at(depth - 1) if depth else is_deep()

    assert not is_deep()
    assert at(500)

"""Making way: what a thread gives up before it blocks, and nobody else's."""

from __future__ import annotations

import threading

from holdfast.rpc.way import make_way, rise, sit


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

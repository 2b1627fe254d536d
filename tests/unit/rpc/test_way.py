"""Making way: what a thread gives up before it blocks, and nobody else's."""

from __future__ import annotations

import threading

from holdfast.rpc.way import make_way, sit


def test_a_thread_gives_up_what_it_has_when_it_is_about_to_block() -> None:
    given: list[str] = []
    make_way()
    sit(lambda: given.append("mine"))
    try:
        make_way()
        other = threading.Thread(target=make_way)
        other.start()
        other.join()
        assert given == ["mine"]
    finally:
        sit(None)
    make_way()
    assert given == ["mine"]

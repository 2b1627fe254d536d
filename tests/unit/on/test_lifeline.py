"""A connection that is lost ends what it started."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from contextlib import closing, contextmanager
from signal import Signals

import pytest

from holdfast.errors import PeerViolation
from holdfast.on.lifeline import follow, read_order
from holdfast.on.order import ORDER_BYTES_MAX, Order, encode_order

SOON_S = 60.0


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    with closing(os.fdopen(reading, "rb")), closing(os.fdopen(writing, "wb", buffering=0)):
        yield reading, writing


def test_an_order_is_read_and_nothing_after_it() -> None:
    order = Order(("x",), "secret")
    with pipe() as (reading, writing):
        os.write(writing, encode_order(order) + b"SIGTERM\n")
        assert read_order(reading) == order
        assert os.read(reading, 100) == b"SIGTERM\n"


def test_no_order_in_time() -> None:
    with pipe() as (reading, writing):
        os.write(writing, b'{"arg')
        with pytest.raises(PeerViolation):
            read_order(reading, within_s=0.01)


def test_an_order_that_is_cut_or_has_no_end() -> None:
    for text in (b"{", b"x" * (ORDER_BYTES_MAX + 1)):
        reading, writing = os.pipe()
        with closing(os.fdopen(reading, "rb")):
            os.write(writing, text)
            os.close(writing)
            with pytest.raises(PeerViolation):
                read_order(reading)


def followed(silence_s: float = SOON_S) -> tuple[int, queue.SimpleQueue[Signals]]:
    came: queue.SimpleQueue[Signals] = queue.SimpleQueue()
    reading, writing = os.pipe()
    follow(reading, silence_s=silence_s, send=came.put)
    return writing, came


def test_signals_come_through_and_the_end_is_one() -> None:
    writing, came = followed()
    os.write(writing, b"\n\nSIGI")
    os.write(writing, b"NT\nSIGUSR1\n\n")
    assert came.get(timeout=SOON_S) is Signals.SIGINT
    assert came.get(timeout=SOON_S) is Signals.SIGUSR1
    os.close(writing)
    assert came.get(timeout=SOON_S) is Signals.SIGTERM


def test_silence_is_as_good_as_the_end() -> None:
    writing, came = followed(silence_s=0.01)
    assert came.get(timeout=SOON_S) is Signals.SIGTERM
    os.close(writing)


def test_what_makes_no_sense_is_as_good_as_the_end() -> None:
    writing, came = followed()
    os.write(writing, b"hello\n")
    assert came.get(timeout=SOON_S) is Signals.SIGTERM
    os.close(writing)

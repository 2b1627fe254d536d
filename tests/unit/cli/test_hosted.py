"""`holdfast run` on a host that was told by standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from signal import Signals

from holdfast.cli import hosted
from holdfast.on.order import Order, encode_order

SOON_S = 120.0
SECRET = "a secret of sixteen bytes or more"


@contextmanager
def started(order: bytes) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", hosted.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        process.stdin.write(order)
        process.stdin.flush()
        yield process
        process.kill()


def order(shell: str) -> bytes:
    words = ("--on=none", "--no-python", "--", "sh", "-c", shell)
    return encode_order(Order(words, SECRET))


def test_the_job_has_the_secret_and_no_input() -> None:
    with started(order('cat; cat "$HOLDFAST_SECRET_FILE"; echo; env')) as process:
        assert process.stdout is not None
        lines = process.stdout.read().decode().splitlines()
        assert process.wait(SOON_S) == 0
    assert lines[0] == SECRET
    assert not [line for line in lines[1:] if SECRET in line]


def test_the_end_of_the_input_ends_the_job() -> None:
    with started(order("echo started; exec sleep 1000")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.stdin.close()
        assert process.wait(SOON_S) == 128 + Signals.SIGTERM


def test_a_signal_comes_over_the_input() -> None:
    with started(order("echo started; exec sleep 1000")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        os.write(process.stdin.fileno(), b"\nSIGINT\n")
        assert process.wait(SOON_S) == 128 + Signals.SIGINT


def test_an_input_that_is_no_order() -> None:
    with started(b"hello\n") as process:
        assert process.stderr is not None
        told = process.stderr.read().decode()
        assert process.wait(SOON_S) == 76
    assert told == (
        "holdfast: standard input: does not begin with an order of holdfast run --hosts\n"
    )

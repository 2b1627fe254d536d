"""Standard output and error: all that a command prints goes through here.

So a failure of standard output is told apart from an OSError of anything else, which is a bug; and
a standard error that is closed changes no exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["OutputFailed", "complain", "drop", "flush", "say", "say_bytes"]


class OutputFailed(Exception):
    """Standard output cannot be written. `cause` is what the system said."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"standard output: {cause.strerror or cause}")
        self.cause = cause


def say(line: str) -> None:
    """Print a line."""
    with _writing():
        print(line)


def say_bytes(line: bytes) -> None:
    """Print a line of bytes as they are. Not to be mixed with `say` in one command."""
    with _writing():
        sys.stdout.buffer.write(line + b"\n")


def flush() -> None:
    """Write out what is buffered."""
    with _writing():
        sys.stdout.flush()


def complain(text: str) -> None:
    """Print to standard error, if it can be written."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # a terminal that is gone, a full disk
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Lead a stream nowhere: what is still buffered would fail once more when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputFailed(error) from None

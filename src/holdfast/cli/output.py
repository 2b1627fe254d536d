"""Standard output: all that a command prints goes through here.

So a failure of standard output is told apart from an OSError of anything else, which is a bug.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["OutputFailed", "flush", "say", "say_bytes"]


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


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputFailed(error) from None

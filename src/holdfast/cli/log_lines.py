"""Lines of log files: cut out of what was written so far, chosen, and safe to print."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LogReader"]

LINE_BYTES_MAX = 64 * 1024
_READ_BYTES = 1 << 18


class LogReader:
    """Reads one log file from its beginning, as far as it is written, again and again."""

    def __init__(self, path: Path, title: str, grep: str | None) -> None:
        self._path = path
        self._title = title
        self._grep = grep
        self._offset = 0
        self._rest = b""

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Yield the lines that are new.

        A line without its end waits for it; but not if this is the last look, nor if it is longer
        than LINE_BYTES_MAX.
        """
        while data := self._read():
            *whole, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > LINE_BYTES_MAX:
                whole.append(self._take_rest())
            yield from self._chosen(whole)
        if last and self._rest:
            yield from self._chosen([self._take_rest()])

    def _take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def _chosen(self, lines: list[bytes]) -> Iterator[str]:
        for line in (one.decode("utf-8", "replace") for one in lines):
            if self._grep is None or self._grep in line:
                yield f"{self._title}: {_printable(line)}"

    def _read(self) -> bytes:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # removed meanwhile
            return b""
        with open(descriptor, "rb", buffering=0) as file:
            file.seek(self._offset)
            data = file.read(_READ_BYTES) or b""
        self._offset += len(data)
        return data


def _printable(line: str) -> str:
    """Escape what would play with the terminal; a carriage return at the end is dropped."""
    line = line.removesuffix("\r")
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in line)

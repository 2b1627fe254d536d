"""A real terminal for tests: its other end is as much of an emulator as is needed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from typing import TextIO

SEQUENCE = re.compile(r"\x1b(?:\[(\??[\d;]*)([A-Za-z])|([78D]))")


class Screen:
    """As much of a terminal as is needed: rows, a cursor, a region that scrolls."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.lines = [""] * rows
        self.at = self.place = (0, 0)
        self.region = (0, rows - 1)
        self.wraps = True

    def feed(self, text: str) -> None:
        while text:
            if found := SEQUENCE.match(text):
                self.obey(*found.groups())
                text = text[found.end() :]
            else:
                self.put(text[0])
                text = text[1:]

    def put(self, c: str) -> None:
        row, column = self.at
        assert c.isprintable() or c in "\r\n", repr(c)
        if c == "\r":
            self.at = (row, 0)
        elif c == "\n" and row == self.region[1]:
            del self.lines[self.region[0]]
            self.lines.insert(self.region[1], "")
        elif c == "\n":
            self.at = (min(row + 1, self.rows - 1), column)
        else:
            if column == self.columns:
                assert self.wraps, "a line was too long"
                self.put("\r")
                self.put("\n")
                row, column = self.at
            self.lines[row] = (self.lines[row].ljust(column)[:column] + c).ljust(column)
            self.at = (row, column + 1)

    def obey(self, given: str | None, letter: str | None, single: str | None) -> None:
        numbers = [int(n) for n in (given or "").lstrip("?").split(";") if n]
        match single or letter:
            case "D":
                self.put("\n")
            case "7":
                self.place = self.at
            case "8":
                self.at = self.place
            case "A":
                self.at = (max(self.at[0] - numbers[0], 0), self.at[1])
            case "H":
                self.at = (min(numbers[0], self.rows) - 1, numbers[1] - 1)
            case "K":
                assert numbers == [2]
                self.lines[self.at[0]] = ""
            case "r":
                first, last = numbers or (1, self.rows)
                self.region, self.at = (first - 1, last - 1), (0, 0)
            case "h" | "l":
                self.wraps = letter == "h"
            case "m":
                pass
            case _:
                raise AssertionError((given, letter, single))


class Terminal:
    """A real one: a stream to write to, and what its user sees."""

    def __init__(self, rows: int, columns: int) -> None:
        self.leader, follower = pty.openpty()
        self.stream: TextIO = os.fdopen(follower, "w", encoding="utf-8")
        self.resize(rows, columns)
        self.said = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen = Screen(rows, columns)

    def look(self) -> list[str]:
        """Take in what was written; return the rows without those at the end that are empty."""
        os.set_blocking(self.leader, False)
        try:
            while data := os.read(self.leader, 65536):
                self.said += data.decode()
                self.screen.feed(data.decode())
        except BlockingIOError:
            pass
        return [line.rstrip() for line in self.screen.lines]

    def worker_prints(self, *lines: str) -> None:
        self.stream.write("".join(f"{line}\n" for line in lines))
        self.stream.flush()

    def close(self) -> None:
        self.stream.close()
        os.close(self.leader)

"""What cannot be printed is told apart from all other failures."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import RawIOBase, TextIOWrapper
from pathlib import Path
from typing import IO, cast

import pytest

from holdfast.cli.output import OutputFailed, complain, drop, flush, say, say_bytes


class Full(RawIOBase):
    """A file that takes nothing."""

    full = True

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(cast(bytes, data))


def test_lines(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    say("é")
    flush()
    say_bytes(b"\xff\0")
    flush()
    assert capsysbinary.readouterr().out == b"\xc3\xa9\n\xff\0\n"


@pytest.mark.parametrize("act", [lambda: say("x"), lambda: say_bytes(b"x")], ids=["text", "bytes"])
def test_a_full_disk(act: Callable[[], None]) -> None:
    raw = Full()
    out = TextIOWrapper(cast(IO[bytes], raw), "utf-8", write_through=True)
    with redirect_stdout(out), pytest.raises(OutputFailed) as caught:
        act()
    assert str(caught.value) == "standard output: No space left on device"
    assert caught.value.cause.errno == errno.ENOSPC
    raw.full = False
    out.close()
    assert sys.stdout is not out


def test_complaints_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    complain("it is full")
    assert capsys.readouterr() == ("", "it is full\n")


def test_an_error_message_that_cannot_be_written_is_dropped() -> None:
    with open("/dev/full", "w") as err, redirect_stderr(err):
        complain("one")
        complain("two")  # the stream leads nowhere by now


def test_what_is_still_buffered_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("w") as out:
        out.write("buffered")
        drop(out)
    assert file.read_text() == ""

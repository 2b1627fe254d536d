"""Transcripts: what a file may hold, what is compared, what a rewrite keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import LeaseLost, UsageError
from holdfast.testing.transcript import Command, TranscriptMismatch, run_transcript

STORY = """\
# A story.

put a "two words" lease=3
----
done

# Nothing comes back here.
quiet
----

lines
first
second = x
----
first
second = x
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(text)
    return path


def handle(command: Command) -> str:
    match command.name:
        case "put":
            return "done"
        case "lines":
            return "\n".join(command.body) + "\n"
        case "fail":
            raise LeaseLost("lease 3 is gone")
        case "gap":
            return "a\n\nb"
        case _:
            return ""


def test_a_true_story_passes_and_commands_are_parsed(tmp_path: Path) -> None:
    seen: list[Command] = []

    def record(command: Command) -> str:
        seen.append(command)
        return handle(command)

    path = write(tmp_path, STORY)
    run_transcript(path, record)
    assert seen == [
        Command("put", ("a", "two words"), {"lease": "3"}, (), f"{path}:3"),
        Command("quiet", (), {}, (), f"{path}:8"),
        Command("lines", (), {}, ("first", "second = x"), f"{path}:11"),
    ]


def test_every_difference_is_shown_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, STORY.replace("done", "failed").replace("quiet\n----", "quiet\n----\nx"))
    with pytest.raises(TranscriptMismatch) as caught:
        run_transcript(path, handle)
    assert f"{path}:3: put\n  - failed\n  + done" in str(caught.value)
    assert f"{path}:8: quiet\n  - x\n  + (nothing)" in str(caught.value)
    assert path.read_text() != STORY


def test_a_rewrite_keeps_comments_and_commands(tmp_path: Path) -> None:
    path = write(tmp_path, STORY.replace("done", "failed").replace("quiet\n----", "quiet\n----\nx"))
    run_transcript(path, handle, rewrite=True)
    assert path.read_text() == STORY


def test_a_rewrite_of_a_true_story_does_not_touch_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, STORY)
    path.chmod(0o444)
    before = path.stat().st_mtime_ns
    run_transcript(path, handle, rewrite=True)
    assert path.stat().st_mtime_ns == before


def test_an_error_of_ours_is_an_output(tmp_path: Path) -> None:
    run_transcript(write(tmp_path, "fail\n----\nLeaseLost: lease 3 is gone\n"), handle)


def test_an_error_that_is_not_ours_is_not_hidden(tmp_path: Path) -> None:
    def broken(command: Command) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_transcript(write(tmp_path, STORY), broken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("put a\n", "story.txt:1: the command 'put a' is not followed by '----'"),
        ("\n----\nx\n", "story.txt:2: '----' without a command"),
        ("put 'a\n----\n", "No closing quotation"),
        ("gap\n----\n", "holds an empty line"),
    ],
)
def test_a_bad_file_is_a_usage_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_transcript(write(tmp_path, text), handle)

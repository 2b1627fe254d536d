"""Transcripts: a machine's stories as text files that a person reads and a test replays.

A transcript is a list of blocks, separated by blank lines:

    # Whatever begins with '#' outside an output is a comment.
    set n 5 lease=1
    ----
    revision 3

The first line is a command: a name, then words and `option=value` pairs, quoted as in a shell.
Lines between it and `----` are the command's body. What follows `----` up to the next blank
line is the expected output. `run_transcript` gives each command to the test's handler, which
returns the real output; a HoldfastError becomes the output `TypeName: its text`.

When the behaviour changes on purpose, `pytest --rewrite` writes the real outputs into the file;
the change is then reviewed as a diff of the story.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError, UsageError

__all__ = ["Command", "TranscriptMismatch", "run_transcript"]

_SEPARATOR = "----"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a transcript, and where it stands."""

    name: str
    args: tuple[str, ...]
    options: dict[str, str]
    body: tuple[str, ...]
    place: str


class TranscriptMismatch(AssertionError):
    """The real outputs differ from the transcript's."""


@dataclass(slots=True)
class _Block:
    """A command and its lines, or lines that are kept as they are (comments, blank lines)."""

    lines: list[str]
    command: Command | None = None
    expected: list[str] | None = None


def run_transcript(path: Path, handle: Callable[[Command], str], *, rewrite: bool = False) -> None:
    """Replay a transcript; TranscriptMismatch shows every difference, UsageError a bad file.

    With `rewrite` the file is brought in line with the real outputs instead.
    """
    blocks = _parse(path)
    differences: list[str] = []
    for block in blocks:
        if block.command is None:
            continue
        real = _run(block.command, handle)
        if real != block.expected:
            differences.append(_difference(block.command, block.expected or [], real))
            block.expected = real
    if differences and not rewrite:
        raise TranscriptMismatch(
            "\n\n".join(differences)
            + "\n\n(if the new outputs are right: pytest --rewrite, and review the diff)"
        )
    if differences:
        path.write_text(_format(blocks), encoding="utf-8")


def _run(command: Command, handle: Callable[[Command], str]) -> list[str]:
    try:
        text = handle(command)
    except HoldfastError as error:
        text = f"{type(error).__name__}: {error}"
    lines = text.rstrip("\n").split("\n") if text else []
    if any(not line.strip() for line in lines):
        raise UsageError(f"{command.place}: the output of {command.name!r} holds an empty line")
    return lines


def _difference(command: Command, expected: list[str], real: list[str]) -> str:
    lines = [f"{command.place}: {command.name}"]
    lines += [f"  - {line}" for line in expected] or ["  - (nothing)"]
    lines += [f"  + {line}" for line in real] or ["  + (nothing)"]
    return "\n".join(lines)


def _parse(path: Path) -> list[_Block]:
    blocks: list[_Block] = []
    lines = path.read_text(encoding="utf-8").split("\n")
    index = 0
    while index < len(lines):
        line = lines[index]
        if not line.strip() or line.startswith("#"):
            blocks.append(_Block([line]))
            index += 1
            continue
        end = index
        while end < len(lines) and lines[end].strip():
            end += 1
        blocks.append(_parse_block(lines[index:end], f"{path}:{index + 1}"))
        index = end
    return blocks


def _parse_block(lines: list[str], place: str) -> _Block:
    if _SEPARATOR not in lines:
        raise UsageError(f"{place}: the command {lines[0]!r} is not followed by {_SEPARATOR!r}")
    cut = lines.index(_SEPARATOR)
    if cut == 0:
        raise UsageError(f"{place}: {_SEPARATOR!r} without a command before it")
    try:
        words = shlex.split(lines[0])
    except ValueError as error:
        raise UsageError(f"{place}: {lines[0]!r}: {error}") from None
    args = tuple(word for word in words[1:] if not _is_option(word))
    options = dict(word.split("=", 1) for word in words[1:] if _is_option(word))
    command = Command(words[0], args, options, tuple(lines[1:cut]), place)
    return _Block(lines[:cut], command, lines[cut + 1 :])


def _is_option(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _format(blocks: list[_Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        lines += block.lines
        if block.command is not None:
            lines += [_SEPARATOR, *(block.expected or [])]
    return "\n".join(lines)

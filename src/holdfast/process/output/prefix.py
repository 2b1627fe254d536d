"""The text before each line of a worker's output, and how chunks of bytes become whole lines.

Only whole lines go to a console that several workers share, so that their lines never mix. A line
ends at a newline, or at a carriage return, with which progress bars begin anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from string import Template

from holdfast.errors import UsageError

__all__ = [
    "DEFAULT_PREFIX",
    "LINE_MAX",
    "LineSplitter",
    "check_prefix",
    "matching_lines",
    "prefix_lines",
    "render_prefix",
]

DEFAULT_PREFIX = "[${role_name}${local_rank}]:"
LINE_MAX = 64 * 1024
"""Bytes of an unfinished line that are waited with; a longer line is cut."""

_NAMES = ("role_name", "local_rank", "rank", "hostname", "host", "attempt")


def check_prefix(template: str) -> None:
    """Refuse a template that has names which we do not know."""
    parsed = Template(template)
    for name in parsed.get_identifiers():
        if name not in _NAMES:
            allowed = ", ".join(f"${{{known}}}" for known in _NAMES)
            raise UsageError(f"line prefix {template!r}: no ${{{name}}}; there are {allowed}")
    if not parsed.is_valid():
        raise UsageError(f"line prefix {template!r}: a '$' before no name; write '$$' for a dollar")


def render_prefix(
    template: str, *, role: str, local_rank: int, rank: int, host: str, attempt: int
) -> bytes:
    """Return the text before each line of one worker. The template has been checked."""
    text = Template(template).substitute(
        role_name=role, local_rank=local_rank, rank=rank, hostname=host, host=host, attempt=attempt
    )
    return text.encode("utf-8", "backslashreplace")


def prefix_lines(lines: bytes, prefix: bytes) -> bytes:
    """Put the prefix before each of some whole lines; nothing else changes."""
    if b"\r" in lines:
        return prefix + prefix.join(lines.splitlines(keepends=True))
    return b"".join((prefix, lines[:-1].replace(b"\n", b"\n" + prefix), b"\n"))


def matching_lines(lines: bytes, needles: Iterable[bytes]) -> bytes:
    """Return those of some whole lines that contain any of the needles."""
    present = [needle for needle in needles if needle in lines]
    if not present:
        return b""
    found = lines.splitlines(keepends=True)
    return b"".join(line for line in found if any(needle in line for needle in present))


class LineSplitter:
    """Makes whole lines of the chunks of one stream.

    An unfinished line is kept until its end comes. One that grows beyond LINE_MAX is cut: what is
    there becomes a line of its own, so that little memory is used and nothing waits for ever.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk; return the lines that are whole now, b"" if none is."""
        # A carriage return at the end may be half of a line's end.
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r", 0, -1)) + 1
        if not end and self._kept.endswith(b"\r") and chunk:
            lines, self._kept = self._kept, chunk
        elif not end:
            lines, self._kept = b"", self._kept + chunk
        else:
            lines, self._kept = self._kept + chunk[:end], chunk[end:]
        if len(self._kept) > LINE_MAX:
            lines, self._kept = lines + self._kept + b"\n", b""
        return lines

    def finish(self) -> bytes:
        """Return the line that the stream's end left unfinished, finished by us."""
        rest, self._kept = self._kept, b""
        return rest + b"\n" if rest else b""

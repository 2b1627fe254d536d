"""Which stream of which worker goes where: what the options of logs say, for one worker.

The options mean what torchrun's mean: `redirects` sends a stream to a file instead of the console;
`tee` to a file and, with a prefix before each line, to the console; the filter of local ranks
silences workers on the console and leaves their files alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntFlag
from pathlib import Path
from typing import TypeAlias

from holdfast.errors import UsageError
from holdfast.process.output.prefix import DEFAULT_PREFIX, check_prefix
from holdfast.records import dataclass

__all__ = [
    "Destination",
    "LogOptions",
    "Std",
    "Streams",
    "parse_filters",
    "parse_ranks",
    "parse_streams",
]


class Std(IntFlag):
    """Standard streams of a worker, by torchrun's numbers."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


Streams: TypeAlias = Std | Mapping[int, Std]
"""Streams of every worker, or by local rank; a worker that is not named has none."""


class Destination(Enum):
    """Where one stream of one worker goes."""

    INHERIT = "wherever the agent's own goes"
    FILE = "its file"
    TEE = "its file and, prefixed, the console"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What to do with the workers' output.

    `log_dir` is where the folder of a run is made, None for a temporary one; `/dev/null` means
    that no output is kept. `prefix` stands before each line on the console, None for torchrun's.
    `local_ranks_filter` names the only workers that the console shows, None for all. Lines of a
    stream on the console that contain one of the `duplicate_…_filters` also go to one file for all
    workers of the attempt.
    """

    log_dir: Path | None = None
    redirects: Streams = Std.NONE
    tee: Streams = Std.NONE
    prefix: str | None = None
    local_ranks_filter: frozenset[int] | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.log_dir, Path | None):
            raise UsageError(f"log_dir {self.log_dir!r}: must be a Path, or None")
        for name, streams in (("redirects", self.redirects), ("tee", self.tee)):
            choices = streams.items() if isinstance(streams, Mapping) else [(0, streams)]
            if not all(isinstance(rank, int) and isinstance(std, Std) for rank, std in choices):
                raise UsageError(f"{name} {streams!r}: must be a Std, or have one by local rank")
        check_prefix(self.template)

    @property
    def template(self) -> str:
        """The prefix of lines, before its names have values."""
        return DEFAULT_PREFIX if self.prefix is None else self.prefix

    @property
    def keeps_files(self) -> bool:
        """Whether any worker's output goes to a file that the user asked for."""
        return self.log_dir != Path("/dev/null") and (_any(self.redirects) or _any(self.tee))

    def destination(self, local_rank: int, stream: Std) -> Destination:
        """Say where a stream of a worker goes."""
        shown = self.local_ranks_filter is None or local_rank in self.local_ranks_filter
        if stream & _of(self.tee, local_rank):
            return Destination.TEE if shown else Destination.FILE
        if stream & _of(self.redirects, local_rank):
            return Destination.FILE
        return Destination.INHERIT if shown else Destination.NOWHERE

    def filters(self, stream: Std) -> tuple[bytes, ...]:
        """Return what a line of a stream must contain to be duplicated; nothing: none is."""
        out = stream is Std.OUT
        texts = self.duplicate_stdout_filters if out else self.duplicate_stderr_filters
        return tuple(text.encode("utf-8", "surrogateescape") for text in texts)


def _of(streams: Streams, local_rank: int) -> Std:
    return streams if isinstance(streams, Std) else streams.get(local_rank, Std.NONE)


def _any(streams: Streams) -> bool:
    return any([streams] if isinstance(streams, Std) else streams.values())


def parse_streams(text: str, what: str = "streams") -> Streams:
    """Read `3` (for every worker) or `0:3,1:1` (by local rank). 1 is stdout, 2 stderr, 3 both."""
    if ":" not in text:
        return _parse_std(text.strip(), text, what)
    streams: dict[int, Std] = {}
    for part in text.split(","):
        rank_text, _, std_text = part.partition(":")
        rank = _parse_rank(rank_text.strip(), text, what)
        if rank in streams:
            raise UsageError(f"{what} {text!r}: local rank {rank} is given twice")
        streams[rank] = _parse_std(std_text.strip(), text, what)
    return streams


def parse_ranks(text: str, what: str = "local ranks") -> frozenset[int] | None:
    """Read `0,1,2`; an empty text means no filter, as it does for torchrun."""
    if not text.strip():
        return None
    return frozenset(_parse_rank(part.strip(), text, what) for part in text.split(","))


def parse_filters(text: str) -> tuple[str, ...]:
    """Read `apple,orange`; two commas are one that is part of a filter; empty filters are none."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def _parse_std(part: str, text: str, what: str) -> Std:
    if part not in {"0", "1", "2", "3"}:
        raise UsageError(
            f"{what} {text!r}: {part!r} must be 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
            "for all workers or as RANK:STREAMS,RANK:STREAMS…"
        )
    return Std(int(part))


def _parse_rank(part: str, text: str, what: str) -> int:
    if not (part.isascii() and part.isdigit() and len(part) <= 6):
        raise UsageError(f"{what} {text!r}: {part!r} must be a local rank, a number from 0")
    return int(part)

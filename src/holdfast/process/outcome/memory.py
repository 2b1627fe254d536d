"""Whether the kernel killed a process: out of memory.

The kernel counts such kills in the control group of the process that it killed, or, where that
group has no memory accounts, in the nearest one above that has. It counts before it kills, so
the count has already risen when the end of a process is seen. The kernel does not say which process
a count stands for: our own group holds little else than our workers; of a group above we say
"probably".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.records import dataclass

__all__ = ["MemoryWatch"]

_V2_COUNTS = "memory.events"
_V2_COUNTS_LOCAL = "memory.events.local"
_V1_COUNTS = "memory.oom_control"
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_NO_LIMIT = 1 << 60  # version 1 has no word for it, but a number near 2**63


@dataclass(frozen=True, slots=True)
class _Counter:
    """One file that counts kills, and what to say of them."""

    file: Path
    place: str
    sure: bool

    def read(self) -> int:
        """Return how many there were; 0 if the file is not there any more."""
        found = re.search(r"^oom_kill (\d+)$", _text(self.file), re.MULTILINE)
        return int(found[1]) if found else 0


class MemoryWatch:
    """Counts of kills as they were when it was made, to compare with later ones.

    Not for several threads at once.
    """

    def __init__(self, counts: dict[_Counter, int]) -> None:
        self._counts = counts

    @classmethod
    def take(cls, cgroup: Path | None = None, *, proc: Path = Path("/proc")) -> MemoryWatch:
        """Begin to watch: this process's control groups, and the one in which workers will be.

        Where there is nothing to read, nothing will be found; that is no error.
        """
        counters = [
            *(_counters_of(cgroup, cgroup) if cgroup else ()),
            *(c for top, own in _own_groups(proc) for c in _counters_of(top, own)),
        ]
        if not counters:
            counters = [_Counter(proc / "vmstat", "the whole machine", sure=False)]
        return cls({counter: counter.read() for counter in counters})

    def killed(self) -> str | None:
        """Say in a sentence that a worker which SIGKILL ended was killed: out of memory.

        None if no count has risen. Each kill is told once: the next worker needs another.
        """
        for counter, before in self._counts.items():
            if counter.read() > before:
                self._counts[counter] = before + 1
                return _sentence(counter, "")
        return None

    def killed_another(self) -> str | None:
        """Say the same of some other process: a worker may fail because its helper was killed."""
        risen = (c for c, before in self._counts.items() if c.read() > before)
        return next((_sentence(counter, "a process beside it was ") for counter in risen), None)


def _sentence(counter: _Counter, victim: str) -> str:
    probably = "" if counter.sure else "probably "
    return f"{victim}{probably}killed by the kernel: out of memory ({counter.place})"


def _counters_of(top: Path, own: Path) -> Iterator[_Counter]:
    """Yield the counter of a group, or of the nearest one above it, up to `top`, that has one."""
    for folder in (own, *own.parents):
        # Of a group above, only kills in itself count: those below it have their own accounts.
        names = (_V2_COUNTS,) if folder == own else (_V2_COUNTS_LOCAL, _V2_COUNTS)
        for name in (*names, _V1_COUNTS):
            if (folder / name).is_file():
                place = f"control group {folder}, {_limit(top, folder)}"
                yield _Counter(folder / name, place, sure=folder == own)
                return
        if folder == top:
            return


def _limit(top: Path, folder: Path) -> str:
    """Say how much memory a group may use: the smallest limit of those that hold it."""
    limits = []
    for place in (folder, *folder.parents):
        texts = (_text(place / name).strip() for name in _LIMITS)
        limits += [int(text) for text in texts if text.isdigit() and int(text) < _NO_LIMIT]
        if place == top:
            break
    return f"limit {min(limits) / (1 << 20):,.0f} MiB" if limits else "no limit of its own"


def _own_groups(proc: Path) -> Iterator[tuple[Path, Path]]:
    """Yield (the top folder that we see, our own folder) of each hierarchy with memory accounts."""
    paths: dict[str, str] = {}
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys((controllers or "cgroup2").split(","), path))
    for line in _text(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, mount = (_unescape(text) for text in before.split(" ")[3:5])
        kind, _, options = after.split(" ", 2)
        name = "memory" if kind == "cgroup" and "memory" in options.split(",") else kind
        if name in ("memory", "cgroup2") and name in paths:
            inside = paths[name].removeprefix(root.rstrip("/")).lstrip("/")
            own = Path(mount, inside)
            # A path from outside of our namespace leads nowhere here: what we see is its top.
            yield Path(mount), own if ".." not in own.parts and own.is_dir() else Path(mount)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

"""Lists of hosts as people and launchers write them.

a,b,c:8                      --hosts: :8 is the number of workers on c
ann@a [::1]:2                a user for ssh; an IPv6 address
node[01-03,7],gpu1           Slurm's short form
host slots=4   # comment     a line of a host file; host:4 is the same
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.errors import UsageError
from holdfast.net.address import parse_address
from holdfast.records import dataclass

__all__ = ["HOSTS_MAX", "Host", "expand", "parse_host_file", "parse_hosts"]

HOSTS_MAX = 4096

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_SLOTS = re.compile(r"slots=(.*)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Host:
    """A host that is reached by ssh."""

    name: str
    user: str = ""
    workers: int | None = None

    @property
    def target(self) -> str:
        """What ssh is told."""
        return f"{self.user}@{self.name}" if self.user else self.name


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read `a,b,c:8`. UsageError for what is no host, or is there twice."""
    return _checked([_host(part.strip()) for part in text.split(",")])


def parse_host_file(text: str) -> tuple[Host, ...]:
    """Read a file with a host on each line; an error names the line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            found.append(_line(words))
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from None
    if not found:
        raise UsageError("it names no host; write one on each line")
    return _checked(found)


def _line(words: list[str]) -> Host:
    host = _host(words[0])
    for word in words[1:]:
        slots = _SLOTS.fullmatch(word)
        if slots is None or host.workers is not None:
            raise UsageError(f"{word!r:.40}: after a host only slots=N is allowed, once")
        host = Host(host.name, host.user, _workers(slots[1]))
    return host


def _host(text: str) -> Host:
    user, at, rest = text.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"host {text!r:.80}: {user!r:.40} must be the name of a user")
    name, colon, count = rest.rpartition(":")
    if not colon or (rest.startswith("[") and rest.endswith("]")):
        name, colon, count = rest, "", ""
    if name.startswith("-"):  # ssh would take it for an option
        raise UsageError(f"host {text!r:.80}: must not begin with '-'")
    try:
        found = parse_address(name, 0).host
    except UsageError:
        raise UsageError(
            f"host {text!r:.80}: must be [USER@]HOST[:WORKERS], an IPv6 address in brackets"
        ) from None
    return Host(found, user, _workers(count) if colon else None)


def _workers(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= 9999):
        raise UsageError(f"{text!r:.40} must be a number of workers from 1 to 9999")
    return int(text[:9])


def _checked(hosts: list[Host]) -> tuple[Host, ...]:
    if len(hosts) > HOSTS_MAX:
        raise UsageError(f"{len(hosts)} hosts: at most {HOSTS_MAX} are allowed")
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            raise UsageError(
                f"host {host.name!r:.80}: is there twice; {host.name}:2 has two workers"
            )
        seen.add(host.name)
    return tuple(hosts)


def expand(text: str) -> tuple[str, ...]:
    """Read Slurm's list: `n[1-3,07],m` is n1, n2, n3, n07 and m. UsageError if it is none."""
    found: list[str] = []
    for part in _parts(text):
        for name in _expanded(part, text):
            found.append(name)
            if len(found) > HOSTS_MAX:
                raise UsageError(f"host list {text!r:.80}: more than {HOSTS_MAX} hosts")
    return tuple(found)


def _parts(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth, start = 0, 0
    for place, one in enumerate(text):
        depth += (one == "[") - (one == "]")
        if one == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _expanded(part: str, text: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    inside, closing, after = rest.partition("]")
    if not part or (bracket and not closing) or "]" in before:
        raise UsageError(f"host list {text!r:.80}: must be like node[01-03,7],other")
    if not bracket:
        yield part
        return
    for one in inside.split(","):
        limits = _RANGE.fullmatch(one)
        if limits is None:
            raise UsageError(f"host list {text!r:.80}: {one!r:.40} must be like 7 or 01-03")
        first, last = limits[1], limits[2] or limits[1]
        for number in range(int(first), int(last) + 1):
            for end in _expanded(after, text) if after else ("",):
                yield f"{before}{number:0{len(first)}d}{end}"

"""What the nodes of a run tell each other through the store: versioned JSON, strictly checked.

All below `rdzv/<run id>/`:

    node/<id>      an `Announcement`: one for each node, on that node's lease, unless it has LEFT
    ctl/leader     a `Leader`: the node that decides, on its lease; unique for each leadership
    ctl/round      a `RoundRecord`: the round that is complete, being formed, or the end of the run
    ctl/progress   a `Progress`: what the leader waits for, for people and for newcomers
    ctl/failures   a `Failures`: the job's failures so far

The members of a round are below `roll/<run id>/<roll>/`, where `RoundRecord.roll` names the roll:

    page/<number>  a `Page`: at most PAGE_MEMBERS members, in the order of their ranks
    place/<id>     a `MemberRank`: the rank of one member

Guarantees
    RM-1  What a node reads to learn its place does not grow with the number of nodes: the record,
          and one `MemberRank`. The list of members is there by pages, for nodes that ask for it.
    RM-2  A leader writes the whole roll, a page and its places at a time, before the record that
          names it. Each of these writes is guarded by its leadership, as the record is.
    RM-3  A roll has one list for ever: its name says the round, the leadership and which attempt
          of that leadership it is. A leader that changes its mind begins another roll. So a roll
          that was not finished, or whose leader died before the record, is named by no record, and
          no node reads it.
    RM-4  The record of the next round names the roll of the last one until that round is complete.
          So any later leader knows the last round's members and their ranks.
    RM-5  While round n runs, its leader removes what rounds up to n-2 have left: their rolls, their
          stores, what was said of them on the board. Three operations for each round; a leader
          that is new does so for the last SWEEP_MAX of them.

Any node may read anything at any time, so a value is judged whole: a wrong version, a missing or
extra field, a wrong type or an absurd size is a PeerViolation, never adopted in part.
"""

from __future__ import annotations

import json
from dataclasses import field, fields
from enum import StrEnum
from functools import cache
from typing import Any, Self, TypeVar

from holdfast.errors import PeerViolation
from holdfast.ids import NodeId, RunId
from holdfast.records import dataclass

__all__ = [
    "VERSION",
    "Announcement",
    "Failures",
    "Keys",
    "Leader",
    "Member",
    "MemberRank",
    "Page",
    "Phase",
    "Progress",
    "RoundRecord",
    "Status",
    "clipped",
]

VERSION = 2
VALUE_BYTES_MAX = 4 * 1024 * 1024
TEXT_MAX = 500
TIMES_MAX = 100
SWEEP_MAX = 8
PAGE_MEMBERS = 100
"""How many members a page has. With its places that is one write: etcd takes 128 keys in one."""


class Phase(StrEnum):
    """What a node does: it waits for a round, works in one, is done with it, has left after that.

    LEFT alone outlives the node: it is announced without a lease.
    """

    WAITING = "waiting"
    WORKING = "working"
    FINISHED = "finished"
    LEFT = "left"


class Status(StrEnum):
    """The state of the run's current round."""

    FORMING = "forming"
    COMPLETE = "complete"
    CLOSED = "closed"


class Keys:
    """Where the values of one run are."""

    def __init__(self, run: RunId) -> None:
        self.root = f"rdzv/{run}/"
        self._rounds = f"round/{run}/"
        self.rolls = f"roll/{run}/"
        self.board = f"board/{run}/"
        self.control = self.root + "ctl/"
        self.nodes = self.root + "node/"
        self.leader = self.control + "leader"
        self.round = self.control + "round"
        self.progress = self.control + "progress"
        self.failures = self.control + "failures"

    def node(self, node: NodeId) -> str:
        """Return the key of a node's announcement."""
        return self.nodes + node

    def of_round(self, number: int) -> str:
        """Return the prefix of what the members of one round share; not below `root`."""
        return f"{self._rounds}{number}/"

    def traces(self, number: int) -> tuple[str, str, str]:
        """Return the prefixes of all that a round leaves."""
        return (f"{self.rolls}{number}/", self.of_round(number), f"{self.board}{number}/")

    def pages(self, roll: str) -> str:
        """Return the prefix of a roll's pages; not below `root`."""
        return f"{self.rolls}{roll}/page/"

    def page(self, roll: str, number: int) -> str:
        """Return the key of a page; the keys of a roll's pages sort as their numbers do."""
        return f"{self.pages(roll)}{number:06}"

    def place(self, roll: str, node: NodeId) -> str:
        """Return the key of a member's place."""
        return f"{self.rolls}{roll}/place/{node}"


class _Value:
    """JSON with a version, from and to a frozen dataclass of plain fields."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the value as JSON; equal values give equal bytes."""
        plain = {"v": VERSION, **_fields(self)}
        return json.dumps(plain, default=_fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a value; PeerViolation says what is wrong with it."""
        plain = _load(data, cls.__name__)
        version = plain.pop("v", None)
        if type(version) is not int or version != VERSION:  # 2.0 would pass for 2
            raise PeerViolation(f"{cls.__name__}: version {VERSION} was expected")
        return _build(cls, plain)


@dataclass(frozen=True, slots=True)
class Member(_Value):
    """A node in a round."""

    node: NodeId
    host: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Announcement(_Value):
    """What a node says of itself.

    `round` is the last round that it was in, 0 for none; `slot` the rank that it requires, or
    None; `why` says what made it ask for a new round; `wish` counts how often it has asked; `nodes`
    is how many nodes it was told to expect: MIN:MAX, or "" for any number.
    """

    node: NodeId
    host: str
    address: str
    port: int
    phase: Phase
    round: int
    slot: int | None
    why: str
    wish: int = 0
    nodes: str = ""

    def member(self) -> Member:
        """Return the node as a member of a round."""
        return Member(self.node, self.host, self.address, self.port)


@dataclass(frozen=True, slots=True)
class Leader(_Value):
    """The node that decides. `term` tells this leadership of a node from its earlier ones.

    `nodes` is how many nodes that node was told to expect: MIN:MAX.
    """

    node: NodeId
    term: int
    nodes: str = ""


@dataclass(frozen=True, slots=True)
class RoundRecord(_Value):
    """The current round.

    COMPLETE: `roll` names the list of its `size` members, the first of which is at `address` and
    `port`, and `failures` of the job had been counted before. FORMING: `number` is the next round,
    `size` and `roll` are of the one before; "" if there was none. CLOSED: there will be no more,
    `failed` says whether that is a failure of the job, and `ended_at` when that was (seconds since
    1970). `reason` says why it came to this.
    """

    number: int
    status: Status
    reason: str
    size: int = 0
    roll: str = ""
    address: str = ""
    port: int = 0
    failures: int = 0
    failed: bool = False
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Page(_Value):
    """Members of a round whose ranks follow one another."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class MemberRank(_Value):
    """The rank of a member."""

    rank: int


@dataclass(frozen=True, slots=True)
class Progress(_Value):
    """What the leader sees, for all other nodes.

    `have` nodes are in or ready, `waiting` more could enter the complete round; `missing` names
    those that are known and not there: they have not asked yet, or were in the last round and are
    gone. `left_s` is how long the leader still waits: for the minimum, for members to come back,
    or for the last call. It alone is no news.
    """

    number: int
    have: int
    waiting: int
    missing: tuple[str, ...]
    left_s: float | None = field(compare=False)
    reason: str


@dataclass(frozen=True, slots=True)
class Failures(_Value):
    """The failures of the job: how many, and the newest round that has been counted.

    `times` are the moments of the newest ones, in seconds since 1970 by the clock of the node that
    counted: at most TIMES_MAX.
    """

    count: int = 0
    round: int = 0
    times: tuple[float, ...] = ()

    def plus(self, number: int, at: float) -> Failures:
        """Return these failures and one of a round that was not counted yet."""
        return Failures(self.count + 1, number, (*self.times, at)[-TIMES_MAX:])


def clipped(text: str) -> str:
    """Return a text that fits into a value: what one node writes, all others must read."""
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _fields(value: Any) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}


def _load(data: bytes, what: str) -> dict[str, Any]:
    if len(data) > VALUE_BYTES_MAX:
        raise PeerViolation(f"{what}: {len(data)} bytes, at most {VALUE_BYTES_MAX} are allowed")
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        raise PeerViolation(f"{what}: {data[:60]!r} is not JSON") from None
    if not isinstance(plain, dict):
        raise PeerViolation(f"{what}: {data[:60]!r} is not a JSON object")
    return plain


T = TypeVar("T")


@cache
def _types(kind: type) -> dict[str, str]:
    return {field.name: str(field.type) for field in fields(kind)}


def _build(kind: type[T], plain: dict[str, Any]) -> T:
    expected = _types(kind)  # type: ignore[arg-type]  # a type is hashable
    if plain.keys() != expected.keys():
        odd = sorted(plain.keys() ^ expected.keys())
        raise PeerViolation(
            f"{kind.__name__}: fields {', '.join(odd)[:200]} are missing or unknown"
        )
    return kind(**{name: _READERS[expected[name]](kind, name, plain[name]) for name in expected})


def _wrong(kind: type, name: str, value: object) -> PeerViolation:
    # A list may be nested as deep as the stack allows, or be megabytes long: it is not shown.
    shown = type(value).__name__ if isinstance(value, (list, dict)) else f"{value!r:.60}"
    return PeerViolation(f"{kind.__name__}.{name}: {shown} is not allowed")


def _text(kind: type, name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise _wrong(kind, name, value)
    return value


def _count(kind: type, name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise _wrong(kind, name, value)
    return value


def _flag(kind: type, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(kind, name, value)
    return value


def _maybe_count(kind: type, name: str, value: object) -> int | None:
    return None if value is None else _count(kind, name, value)


def _maybe_seconds(kind: type, name: str, value: object) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < 1e9:  # type: ignore[operator]
        raise _wrong(kind, name, value)
    return float(value)  # type: ignore[arg-type]


def _phase(kind: type, name: str, value: object) -> Phase:
    if not isinstance(value, str) or value not in list(Phase):
        raise _wrong(kind, name, value)
    return Phase(value)


def _status(kind: type, name: str, value: object) -> Status:
    if not isinstance(value, str) or value not in list(Status):
        raise _wrong(kind, name, value)
    return Status(value)


def _members(kind: type, name: str, value: object) -> tuple[Member, ...]:
    fits = isinstance(value, list) and len(value) <= PAGE_MEMBERS
    if not fits or not all(isinstance(item, dict) for item in value):  # type: ignore[attr-defined]
        raise _wrong(kind, name, value)
    return tuple(_build(Member, item) for item in value)  # type: ignore[attr-defined]


def _texts(kind: type, name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong(kind, name, value)
    return tuple(_text(kind, name, item) for item in value)


def _moment(kind: type, name: str, value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e12:  # type: ignore[operator]
        raise _wrong(kind, name, value)
    return float(value)  # type: ignore[arg-type]


def _moments(kind: type, name: str, value: object) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > TIMES_MAX:
        raise _wrong(kind, name, value)
    return tuple(_moment(kind, name, item) for item in value)


# How to read a field, by its annotation.
_READERS: dict[str, Any] = {
    "NodeId": _text,
    "str": _text,
    "int": _count,
    "bool": _flag,
    "int | None": _maybe_count,
    "float": _moment,
    "float | None": _maybe_seconds,
    "Phase": _phase,
    "Status": _status,
    "tuple[Member, ...]": _members,
    "tuple[float, ...]": _moments,
    "tuple[str, ...]": _texts,
}

"""What went wrong in a worker, as data: the error file's format, and which failure came first.

Rule: everything that says what a failure is, and in which order failures are told, is here.

An error file is JSON in torchrun's format, in either of its forms:

    {"message": "text", "timestamp": "<s>"}
    {"message": {"message": "Type: text", "errorCode": n,
                 "extraInfo": {"py_callstack": "…", "timestamp": "<s>", "moment": s.fff,
                               "type": "package.Type", "host": "…", "rank": n}}}

where `timestamp` is in whole seconds since 1970. `moment` (the same with its fraction), `type`,
`host` and `rank` are ours, and others ignore them. Everything but the inner `message` may be
missing.

The order of failures is that of their moments: a worker that died because its peer was gone comes
after that peer, since it died later. A death without words (SIGKILL, `os._exit`) is known from when
it was seen to begin, which can be after a peer has raised because of it; so the one exception: a
first failure whose own words are that a peer was gone gives way to a death without words that was
seen less than NOTICED_LATE_S after it.

Workers and peers are not trusted: sizes and depths are capped, and `message`, `traceback`, `stack`
and `hint` of a Failure hold no character that could move a terminal's cursor.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import field, fields
from itertools import accumulate
from signal import Signals
from typing import Any

from holdfast.errors import PeerViolation, WorkerFailure
from holdfast.process.spec import Exit
from holdfast.records import dataclass

__all__ = [
    "ErrorReport",
    "Failure",
    "WorkerExited",
    "clip",
    "dump_json",
    "first_cause",
    "hint_for",
    "load_json",
    "lost_a_peer",
    "make_error_data",
    "parse_error_data",
    "reply_data",
    "visible",
]

MESSAGE_CHARS_MAX = 16 * 1024
TRACEBACK_CHARS_MAX = 128 * 1024
STACK_CHARS_MAX = 64 * 1024
_NAME_CHARS_MAX = 1024
_DEPTH_MAX = 64
# What travels between nodes is smaller: a value of etcd holds the failures of a whole node.
_PEER_MESSAGE_CHARS_MAX = 2 * 1024
_PEER_TRACEBACK_CHARS_MAX = 8 * 1024
_PEER_STACK_CHARS_MAX = 4 * 1024
_PEER_DATA_BYTES_MAX = 12 * 1024
_PEER_TEXTS = {
    "role": _NAME_CHARS_MAX,
    "host": _NAME_CHARS_MAX,
    "message": _PEER_MESSAGE_CHARS_MAX,
    "error_type": _NAME_CHARS_MAX,
    "traceback": _PEER_TRACEBACK_CHARS_MAX,
    "stack": _PEER_STACK_CHARS_MAX,
    "hint": _NAME_CHARS_MAX,
    "error_file": _NAME_CHARS_MAX,
    "kind": _NAME_CHARS_MAX,
}
_PEER_COUNTS = {
    "rank": 0,
    "local_rank": 0,
    "pid": 0,
    "exit": -(1 << 31),
    "step": -1,
    "repeated": 0,
}
_COUNT_MAX = (1 << 31) - 1

CLOCKS_AGREE_S = 1.0
"""Clocks of two hosts that differ by less, as far as one can see, are taken for synchronised."""
NOTICED_LATE_S = 1.0
"""A death that was noticed later than this after a failure is not taken for its cause."""
_SECONDS_MAX = 1e11  # a time beyond it counts something else than seconds

# Characters that do more than stand there: controls, reordering marks, halves of characters.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_TURN = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

_PEER_IS_GONE = (
    *("brokenpipeerror", "connectionabortederror", "connectionrefusederror"),
    *("connectionreseterror", "peerlost"),
    *("broken pipe", "connection closed by peer", "connection closed by remote peer"),
    *("connection refused", "connection reset by peer", "connection was likely closed"),
    *("remote process exited", "remote process exiting prematurely", "remote side closed"),
    "socket closed",
)
_BARE_END = "EOFError"  # with words it tells of a file; without, of a connection
_HINTS = {
    -Signals.SIGKILL: "something outside the job killed it: the scheduler, a person, or the kernel"
    " (out of memory)",
    -Signals.SIGTERM: "something asked it to end: the scheduler, a person, or this job's launcher",
    -Signals.SIGPIPE: "it wrote to a pipe or socket that had no reader any more",
    -Signals.SIGSEGV: "a crash in native code",
    -Signals.SIGBUS: "a crash in native code; shared memory (/dev/shm) may be full",
    -Signals.SIGABRT: "native code called abort(); its message is on the worker's standard error",
    -Signals.SIGILL: "native code that was built for another processor",
    -Signals.SIGFPE: "a crash in native code: an arithmetic error, such as a division by zero",
    126: "a shell exits with 126 if a command cannot be executed",
    127: "a shell exits with 127 if a command was not found",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of one worker.

    `at` is when it happened, in seconds since 1970 on the clock of its host: when the worker
    raised if its error file says so, else when it was seen to end. `stack` is the Python stack at
    a native crash, or before the agent killed it; `hint` is what else is known, such as that the
    kernel was out of memory. `error_data` is the error file's content if it had one that could be
    read, `error_type` the class of the exception if that says it. `moment` is `at` on the clock of
    the node that tells it; None for a failure of its own, where the two are the same. `kind` is
    "oom" or "stall" if it is one, `step` the last step that the worker told, -1 if it told none;
    `repeated` is how often it came in a row if the job is given up for that, else 0.
    """

    rank: int
    local_rank: int
    role: str
    host: str
    pid: int
    exit: Exit
    at: float
    message: str
    error_type: str = ""
    traceback: str = field(default="", repr=False)
    stack: str = field(default="", repr=False)
    hint: str = ""
    error_file: str = ""
    error_data: dict[str, Any] | None = field(default=None, repr=False)
    moment: float | None = None
    kind: str = ""
    step: int = -1
    repeated: int = 0

    @property
    def when(self) -> float:
        """The moment by which failures are put in order."""
        return self.at if self.moment is None else self.moment

    @property
    def has_words(self) -> bool:
        """Say whether more is known than how the process ended."""
        return self.message != str(self.exit)

    def to_json(self, now: float) -> dict[str, Any]:
        """Return what another node is told; `now` is the time on the clock that made `at`.

        It says how long ago it happened, since the other's clock may be wrong, or ours.
        Long texts are clipped; an error file's content that is too large is left out.
        """
        told: dict[str, Any] = {
            **{name: clip(getattr(self, name), most) for name, most in _PEER_TEXTS.items()},
            **{name: getattr(self, name) for name in _PEER_COUNTS},
            "exit": self.exit.code,
            "step": min(self.step, _COUNT_MAX),
            "at": self.at,
            "age_s": max(0.0, now - self.at),
            "error_data": self.error_data,
        }
        if len(dump_json(self.error_data)) > _PEER_DATA_BYTES_MAX:
            told["error_data"] = None
        return told

    @classmethod
    def from_json(cls, value: object, now: float) -> Failure:
        """Read what another node's `to_json` said, received at `now`; strictly: PeerViolation.

        `moment` is when it happened on our clock. If the two clocks seem to agree it is what
        theirs said, since the time that the news took is of the same size as what is left of the
        difference, and every node then finds the same order.
        """
        names = {f.name for f in fields(cls)} - {"moment"} | {"age_s"}
        if not isinstance(value, dict) or value.keys() != names:
            raise PeerViolation("a failure reported by another node: fields are missing or unknown")
        texts = {name: _peer_text(value, name) for name in _PEER_TEXTS}
        counts = {name: _peer_count(value, name) for name in _PEER_COUNTS}
        at, age_s = _peer_seconds(value, "at"), _peer_seconds(value, "age_s")
        moment = now - age_s
        return cls(
            rank=counts["rank"],
            local_rank=counts["local_rank"],
            pid=counts["pid"],
            exit=Exit(counts["exit"]),
            at=at,
            moment=at if abs(moment - at) < CLOCKS_AGREE_S else moment,
            error_data=_peer_data(value["error_data"]),
            step=counts["step"],
            repeated=counts["repeated"],
            **texts,
        )


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process has ended. `failure` is None if it ended well.

    `asked` says that it ended after the group had been told to stop: it is no failure then,
    unless its error file shows that it had failed before.
    """

    local_rank: int
    pid: int
    exit: Exit
    failure: Failure | None
    asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """What an error file says. `timestamp` is in whole seconds, `moment` has the fraction."""

    message: str
    error_type: str
    traceback: str
    timestamp: int | None
    moment: float | None
    data: dict[str, Any]


def first_cause(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Put failures in the order in which they happened: the first is the cause of the end."""
    ordered = sorted(failures, key=lambda failure: (failure.when, failure.rank))
    if ordered and lost_a_peer(ordered[0]):
        told_at = ordered[0].when
        for place, failure in enumerate(ordered):
            if not failure.has_words and failure.when - told_at < NOTICED_LATE_S:
                ordered.insert(0, ordered.pop(place))
                break
    return tuple(ordered)


def lost_a_peer(failure: Failure) -> bool:
    """Say whether a failure's own words are that a peer was gone before it."""
    said = f"{failure.error_type}: {failure.message}".lower()
    return failure.message.rstrip(": ") == _BARE_END or any(
        words in said for words in _PEER_IS_GONE
    )


def hint_for(exit_: Exit) -> str:
    """Say what the way in which a process ended usually means; empty if it means nothing."""
    if exit_.code in _HINTS:
        return _HINTS[exit_.code]
    if 128 < exit_.code < 128 + 65:
        return f"a shell exits with {exit_.code} for: {Exit(128 - exit_.code)}"
    return ""


def parse_error_data(data: bytes) -> ErrorReport:
    """Read an error file's content, which is not trusted; PeerViolation says why it cannot be."""
    parsed = load_json(data)
    if not isinstance(parsed, dict) or "message" not in parsed:
        raise PeerViolation('not an object with a "message"')
    inner = parsed["message"] if isinstance(parsed["message"], dict) else parsed
    extra = inner.get("extraInfo")
    if not isinstance(extra, dict):
        extra = {}
    timestamp = _seconds(extra.get("timestamp", inner.get("timestamp")))
    return ErrorReport(
        message=_text(inner.get("message"), MESSAGE_CHARS_MAX),
        error_type=_text(extra.get("type"), _NAME_CHARS_MAX),
        traceback=_text(extra.get("py_callstack"), TRACEBACK_CHARS_MAX),
        timestamp=None if timestamp is None else int(timestamp),
        moment=_seconds(extra.get("moment")),
        data=parsed,
    )


def make_error_data(
    error: BaseException, traceback: str, now: float, *, host: str = "", rank: int | None = None
) -> dict[str, Any]:
    """Return the content of the error file for an exception; `now` is in seconds since 1970."""
    kind = type(error)
    try:
        text = f"{kind.__name__}: {error}"
    except Exception:
        text = f"{kind.__name__}: (no text: its str() raises)"
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    extra = {
        "py_callstack": clip(traceback, TRACEBACK_CHARS_MAX),
        "timestamp": str(int(now)),
        "moment": now,
        "type": f"{module}{kind.__qualname__}",
        "host": host,
        "rank": rank,
    }
    return {"message": {"message": clip(text, MESSAGE_CHARS_MAX), "extraInfo": extra}}


def reply_data(failure: WorkerFailure) -> dict[str, Any]:
    """Return what an agent's own error file says of the first cause: what the worker's did.

    `errorCode` tells how the worker ended, which it could not know itself.
    """
    inner: object = failure.error_data and failure.error_data.get("message")
    if failure.error_data and not isinstance(inner, dict):
        return failure.error_data  # the short form has no place for a code
    if not isinstance(inner, dict):
        extra = {
            "py_callstack": failure.traceback or failure.stack or failure.message,
            "timestamp": str(int(failure.at)),
            "moment": failure.at,
            "host": failure.host,
            "rank": failure.rank,
        }
        inner = {"message": failure.message, "extraInfo": extra}
    told = {**inner, "errorCode": failure.exit.code}
    return {**(failure.error_data or {}), "message": told}


def load_json(data: bytes) -> Any:
    """Parse untrusted JSON: bad UTF-8 is replaced; PeerViolation for what is no JSON, or deep.

    The depth is known before anything is parsed, since parsers go down as deep as they are led.
    """
    turns = map(_TURN.__getitem__, _STRING.sub(b"", data).translate(None, _NO_BRACKETS))
    if any(depth > _DEPTH_MAX for depth in accumulate(turns)):
        raise PeerViolation(f"nested deeper than {_DEPTH_MAX}")
    try:
        return json.loads(
            data.decode("utf-8", "replace"), parse_constant=str, parse_float=_finite_or_text
        )
    except ValueError as error:
        reason = getattr(error, "msg", "a number is too long")
        raise PeerViolation(f"not JSON: {reason}") from None


def dump_json(value: object) -> bytes:
    """Return JSON in UTF-8, whatever the strings hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")  # which is how JSON writes half a character


def visible(text: str) -> str:
    """Return a text whose active characters are escaped: it cannot move a terminal's cursor."""
    return _ACTIVE.sub(
        lambda found: found[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n")
    )


def clip(text: str, most: int) -> str:
    """Return at most so many characters of a text: where it is longer, its begin and its end."""
    if len(text) <= most:
        return text
    mark = f"\n[… more than {len(text) - most} characters are left out …]\n"
    head = (most - len(mark)) // 4
    return f"{text[:head]}{mark}{text[len(text) - (most - len(mark) - head) :]}"


def _text(value: object, most: int) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else dump_json(value).decode()
    return clip(visible(clip(text, most)), most)


def _seconds(value: object) -> float | None:
    """Return a time in seconds, given as a number or as a text; None if it makes no sense."""
    if isinstance(value, str) and len(value) <= 32:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < _SECONDS_MAX else None


def _finite_or_text(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _peer_text(value: dict[str, Any], name: str) -> str:
    text = value[name]
    if not isinstance(text, str) or len(text) > _PEER_TEXTS[name]:
        raise PeerViolation(
            f"a failure reported by another node: {name} is not a text, or too long"
        )
    return visible(text)


def _peer_count(value: dict[str, Any], name: str) -> int:
    count = value[name]
    if type(count) is not int or not _PEER_COUNTS[name] <= count <= _COUNT_MAX:
        raise PeerViolation(f"a failure reported by another node: {name} is out of range")
    return count


def _peer_seconds(value: dict[str, Any], name: str) -> float:
    seconds = value[name]
    if type(seconds) not in (int, float) or not 0 <= seconds < _SECONDS_MAX:
        raise PeerViolation(f"a failure reported by another node: {name} is not a time")
    return float(seconds)


def _peer_data(value: object) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise PeerViolation("a failure reported by another node: error_data is not an object")
    try:
        size = len(dump_json(value))
    except RecursionError:
        raise PeerViolation("a failure reported by another node: error_data is too deep") from None
    if size > _PEER_DATA_BYTES_MAX:
        raise PeerViolation("a failure reported by another node: error_data is too large")
    return value

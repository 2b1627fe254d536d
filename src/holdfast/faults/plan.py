"""Which faults happen, when, and how often: a plan with a seed, and the record of its faults.

A plan is a list of rules. Every message is matched against the rules in their order; each rule that
matches fires, unless its limit is used up or its probability prevents it. The same plan with the
same messages in the same order fires the same faults.

As text, a plan has one rule per line; `#` begins a comment:

    seed 7
    fail RREF_FORK_REQUEST,RREF_USER_DELETE each=3     # each message, the first three times
    delay PYTHON_CALL seconds=1.5
    drop PYTHON_CALL to=worker1 p=0.01
    drop reply PYTHON_CALL nth=2                       # the reply to the second one
    reset running PYTHON_CALL times=5                  # while the callee runs it

A reply can be dropped, delayed, reset or corrupted; a running request can be reset. A delay and a
partition need `seconds`. Kinds are those of requests (`rpc/wire/messages.py`).

Guarantees
    FP-1  A rule fires only for messages that it names, and never more often than its limits.
    FP-2  Every fault that fired is recorded, and can be counted by action.
    FP-3  A text that is not a valid plan raises UsageError, which names the line, what is wrong
          with it, and what is allowed.
    FP-4  `str(plan)` is a text that makes the same plan.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.errors import UsageError
from holdfast.rpc.wire.messages import Kind

__all__ = ["Action", "FaultPlan", "Fired", "Moment", "Rule", "kind_of", "parse_plan"]


class Action(StrEnum):
    """The kind of a fault."""

    FAIL = "fail"
    """Sending fails at once."""
    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    """It is sent after the next one to the same peer."""
    CORRUPT = "corrupt"
    """It arrives corrupted: the receiver detects that, and closes the connection."""
    RESET = "reset"
    """The connection breaks."""
    PARTITION = "partition"
    """It and everything after it to the same peer is dropped, for `seconds`."""


class Moment(StrEnum):
    """When the fault happens."""

    REQUEST = "request"
    REPLY = "reply"
    RUNNING = "running"
    """After the request has arrived, and before its reply is sent."""


_NUMBERS = {"times": int, "each": int, "nth": int, "p": float, "seconds": float}
_TYPES = {int: "a whole number", float: "a number"}
_DEFAULTS = {"times": None, "each": None, "nth": None, "p": 1.0, "seconds": 0.0}
_AFTERWARDS = {
    Moment.REPLY: frozenset({Action.DROP, Action.DELAY, Action.RESET, Action.CORRUPT}),
    Moment.RUNNING: frozenset({Action.RESET}),
}
_LASTING = frozenset({Action.DELAY, Action.PARTITION})
_KINDS = {kind.name: kind for kind in Kind if kind.is_request}


def kind_of(name: object) -> Kind:
    """Return the kind of request that has this name; UsageError lists the valid names."""
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UsageError(f"{name!r:.60} is not a kind of message; there are {', '.join(_KINDS)}")
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of fault. Empty `kinds` and `to` mean all.

    `times` limits how often it fires in all, `each` how often for one and the same message. With
    `nth` it fires only for the nth message that matches (from 1). `p` is the probability to fire.
    """

    action: Action
    moment: Moment = Moment.REQUEST
    kinds: frozenset[Kind] = frozenset()
    to: frozenset[str] = frozenset()
    times: int | None = None
    each: int | None = None
    nth: int | None = None
    p: float = 1.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise UsageError(f"fault {self.action}: p={self.p}: must be from 0 to 1")
        if not 0 <= self.seconds < float("inf"):
            raise UsageError(f"fault {self.action}: seconds={self.seconds}: must not be negative")
        for name in ("times", "each", "nth"):
            value = getattr(self, name)
            if value is not None and value < (1 if name == "nth" else 0):
                raise UsageError(f"fault {self.action}: {name}={value}: is too small")
        if self.moment is not Moment.REQUEST and self.action not in _AFTERWARDS[self.moment]:
            raise UsageError(f"fault {self.action}: not possible at the moment {self.moment}")
        for kind in self.kinds:
            kind_of(kind.name)
        if "" in self.to:
            raise UsageError(f"fault {self.action}: to= is for names of workers, joined by commas")

    def __str__(self) -> str:
        words: list[str] = [self.action]
        if self.moment is not Moment.REQUEST:
            words.append(self.moment)
        if self.kinds:
            words.append(",".join(kind.name for kind in sorted(self.kinds)))
        if self.to:
            words.append("to=" + ",".join(sorted(self.to)))
        for name in _NUMBERS:
            value = getattr(self, name)
            if value != _DEFAULTS[name] or (name == "seconds" and self.action in _LASTING):
                words.append(f"{name}={value!r}")
        return " ".join(words)

    def fits(self, kind: Kind, to: str, moment: Moment) -> bool:
        """Return whether the rule matches a message."""
        return (
            moment is self.moment
            and (not self.kinds or kind in self.kinds)
            and (not self.to or to in self.to)
        )


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that happened."""

    action: Action
    moment: Moment
    kind: Kind
    to: str
    seconds: float


@dataclass(slots=True)
class _Count:
    seen: int = 0
    fired: int = 0
    each: Counter[Hashable] = field(default_factory=Counter)


class FaultPlan:
    """Rules, a random generator, and a record. Not thread-safe: callers hold a lock."""

    def __init__(self, seed: int, rules: Iterable[Rule]) -> None:
        self.seed = seed
        self.rules = tuple(rules)
        self.record: list[Fired] = []
        self._dice = random.Random(seed)  # noqa: S311  # must be repeatable, not secret
        self._counts = [_Count() for _ in self.rules]

    def decide(self, kind: Kind, to: str, moment: Moment, message: Hashable) -> list[Fired]:
        """Return the faults of a message; `message` is the same when it is sent again."""
        found = []
        for rule, count in zip(self.rules, self._counts, strict=True):
            if rule.fits(kind, to, moment) and self._fires(rule, count, message):
                found.append(Fired(rule.action, moment, kind, to, rule.seconds))
        self.record += found
        return found

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in (f"seed {self.seed}", *self.rules))

    def short_of(self) -> list[Rule]:
        """Return the rules that have fired less often than their limits, or not at all.

        If there are any, the run has not tested all faults that it was meant to test.
        """
        return [
            rule
            for rule, count in zip(self.rules, self._counts, strict=True)
            if count.fired < (1 if rule.times is None else rule.times)
        ]

    def fired(self) -> dict[Action, int]:
        """Return how often each action has happened."""
        return dict(Counter(fault.action for fault in self.record))

    def counts(self) -> list[int]:
        """Return how often each rule has fired, in their order."""
        return [count.fired for count in self._counts]

    def _fires(self, rule: Rule, count: _Count, message: Hashable) -> bool:
        count.seen += 1
        lucky = rule.p >= 1 or self._dice.random() < rule.p
        if not lucky or (rule.nth is not None and count.seen != rule.nth):
            return False
        if rule.times is not None and count.fired >= rule.times:
            return False
        if rule.each is not None:
            if count.each[message] >= rule.each:
                return False
            count.each[message] += 1
        count.fired += 1
        return True


def parse_plan(text: str) -> FaultPlan:
    """Read a plan; the module's docstring shows the format."""
    if not isinstance(text, str):
        raise UsageError(f"fault plan: {text!r:.60}: must be a text")
    seed: int | None = None
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            if words[0] == "seed":
                if seed is not None:
                    raise UsageError("seed is given twice")
                seed = _parse_seed(words[1:])
            else:
                rules.append(_parse_rule(words))
        except UsageError as error:
            raise UsageError(f"fault plan, line {number}: {line.strip()!r:.80}: {error}") from None
    return FaultPlan(seed or 0, rules)


def _parse_seed(words: list[str]) -> int:
    if len(words) != 1:
        raise UsageError("must be `seed` and one number")
    return int(_number("seed", words[0], int))


def _parse_rule(words: list[str]) -> Rule:
    if words[0] not in list(Action):
        raise UsageError(f"{words[0]!r:.60} is not an action; there are {', '.join(Action)}")
    options: dict[str, Any] = {}
    for word in words[1:]:
        name, value = _parse_word(word)
        if name in options:
            more = "; several are joined by commas" if name in ("kinds", "to") else ""
            raise UsageError(f"{word!r:.60}: {name} is given twice{more}")
        options[name] = value
    action = Action(words[0])
    if action in _LASTING and "seconds" not in options:
        raise UsageError(f"{action} needs seconds=")
    return Rule(action=action, **options)


def _parse_word(word: str) -> tuple[str, object]:
    """Return the name of the rule's field that a word sets, and its value."""
    name, equals, value = word.partition("=")
    if not equals:
        if word in list(Moment):
            return "moment", Moment(word)
        names = word.split(",")
        if "" in names:
            raise UsageError(f"{word!r:.60}: kinds are joined by commas, without blanks")
        return "kinds", frozenset(map(kind_of, names))
    if name == "to":
        return name, frozenset(value.split(","))
    if name not in _NUMBERS:
        raise UsageError(f"{name!r:.60} is not an option; there are to, {', '.join(_NUMBERS)}")
    return name, _number(name, value, _NUMBERS[name])


def _number(name: str, value: str, kind: type[int | float]) -> float:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name} {value!r:.60}: must be {_TYPES[kind]}") from None

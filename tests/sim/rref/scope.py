"""All that can happen to one reference between three workers, in any order, with one fault.

Each worker follows a short script; between its steps, any message may be handled at any time, any
number of times while it is not answered (so loss and repetition come for free), and answers may
take as long as they like. One fault may strike at any point: a message is handled once more after
everything else has forgotten it, a giver gives up before its gift has come, which comes late or
never, or the lease of a worker ends. Each of the others hears of that on its own, before or after
that worker stops.

Every state that can be reached is visited once. In each, what a worker knows must fit; a value must
not be freed while a worker holds it; a fork must not be refused before a worker has heard of an
end; and where nothing more can happen, nothing may be left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from holdfast.rpc.rref.protocol import (
    ControlMessage,
    Fork,
    ForkState,
    Freed,
    Outcome,
    References,
    _Owned,
)
from holdfast.rpc.rref.reply_references import RecentKeys
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number, Ticket
from tests.sim.rref.judge import inconsistencies

OWNER, MAKER, THIRD = "owner", "maker", "third"
GIFT = Kind.PYTHON_CALL
CREATE = Kind.PYTHON_REMOTE_CALL

Key: TypeAlias = Any


class Letter(NamedTuple):
    """Something to be told: a request of the protocol, a creation, or a gift."""

    kind: Kind
    source: str
    target: str
    body: Any


class Scene:
    """One state. Steps change it; `copy` first."""

    def __init__(self, scripts: dict[str, tuple[str, ...]]) -> None:
        self.machines = {name: References(name, 64) for name in scripts}
        self.scripts = scripts
        self.hands: dict[str, list[tuple[Number, Number | None]]] = {name: [] for name in scripts}
        self.unanswered: frozenset[Letter] = frozenset()
        self.answers: frozenset[tuple[Letter, bool]] = frozenset()
        self.stale: frozenset[Letter] = frozenset()
        self.faults = 1
        self.gone = ""  # its lease is over …
        self.dead = ""  # … and it has stopped
        self.unheard: frozenset[str] = frozenset()
        self.made: frozenset[Number] = frozenset()
        self.wrong: list[str] = []
        self._changed: set[str] = set()
        self._digests = {name: digest(machine) for name, machine in self.machines.items()}

    def copy(self) -> Scene:
        other = Scene.__new__(Scene)
        other.__dict__.update(self.__dict__)
        other.machines = dict(self.machines)
        other._digests = dict(self._digests)
        other._changed = set()
        other.hands = {name: list(held) for name, held in self.hands.items()}
        other.wrong = []
        return other

    def machine(self, name: str) -> References:
        """Return a machine that is about to be stepped: no other state may see that."""
        if name not in self._changed:
            self._changed.add(name)
            self.machines[name] = clone(self.machines[name])
        return self.machines[name]

    def key(self) -> Key:
        return (
            tuple(self._digests.values()),
            tuple(self.scripts.values()),
            tuple(tuple(held) for held in self.hands.values()),
            (self.unanswered, self.answers, self.stale, self.made),
            (self.faults, self.gone, self.dead, self.unheard),
        )

    # What can happen.

    def moves(self) -> list[tuple[Any, ...]]:
        moves: list[tuple[Any, ...]] = []
        for name, script in self.scripts.items():
            if script and name != self.dead and (self.hands[name] or script[0] == "make"):
                moves.append(("act", name))
        for letter in self.unanswered:
            if letter.target != self.dead:
                moves.append(("handle", letter))
                if self.faults:
                    moves.append(("keep", letter))
            if letter.kind is CREATE:
                moves.append(("give up", letter))
            if letter.kind is GIFT and self.faults:
                moves += [("unread", letter, "late"), ("unread", letter, "never")]
        moves += [("answer", *answer) for answer in self.answers]
        if self.faults:
            moves += [("lose", letter) for letter, _ in self.answers if letter.kind is GIFT]
        moves += [("again", letter) for letter in self.stale if letter.target != self.dead]
        moves += [("hear", name) for name in self.unheard]
        if self.faults:
            moves += [("expire", name) for name in self.machines]
        if self.gone != self.dead:
            moves.append(("stop", self.gone))
        return moves

    def do(self, move: tuple[Any, ...]) -> None:
        match move:
            case ("act", name):
                self._act(name)
            case ("handle", letter):
                self._handle(letter)
            case ("keep", letter):
                self.faults -= 1
                self.stale |= {letter}
            case ("again", letter):
                self.stale -= {letter}
                self._handle(letter)
            case ("answer", letter, answer):
                self.answers -= {(letter, answer)}
                if letter.kind is GIFT:
                    giver = self.machine(letter.source)
                    self._perform(letter.source, giver.taken_by(letter.target, [letter.body]))
                else:
                    self._answered(letter, answer)
            case ("lose", letter):
                self.faults -= 1
                self.answers -= {(letter, True)}
                self._tell(letter._replace(kind=Kind.RREF_UNREAD))
            case ("give up", letter):
                self._answered(letter, True)
            case ("unread", letter, comes):
                self.faults -= 1
                self.stale |= {letter} if comes == "late" else set()
                self._answered(letter, True)
                self._tell(letter._replace(kind=Kind.RREF_UNREAD))
            case ("expire", name):
                self.faults -= 1
                self.gone = name
                self.unheard = frozenset(one for one in self.machines if one != name)
            case ("stop", name):
                self._stop(name)
            case ("hear", name):
                self.unheard -= {name}
                self._give_up_on_the_dead()
                self._perform(name, self.machine(name).died(self.gone))
        for name in self._changed:
            self._digests[name] = digest(self.machines[name])
            if name != self.dead:
                self.wrong += inconsistencies(self.machines[name])

    # How it happens.

    def _act(self, name: str) -> None:
        machine, hands = self.machine(name), self.hands[name]
        step, *rest = self.scripts[name]
        self.scripts = {**self.scripts, name: tuple(rest)}
        if step == "make":
            ticket = machine.ask(OWNER)
            hands.append((ticket.reference, ticket.fork))
            self._tell(Letter(CREATE, name, OWNER, (ticket.reference, ticket.fork)))
            return
        reference, fork = hands[0]
        if step == "drop":
            del hands[0]
            dropped = machine.release(reference) if fork is None else machine.drop(fork)
            self._perform(name, dropped)
            return
        given = machine.give_own(reference, step) if fork is None else machine.give(fork, step)
        if given is not None:
            self._tell(Letter(GIFT, name, step, given))

    def _tell(self, letter: Letter) -> None:
        if letter.target != self.gone or self._may_tell(letter.source):
            self.unanswered |= {letter}

    def _may_tell(self, name: str) -> bool:
        """Say whether a worker may send to the one that is gone: also that one to itself."""
        return name in self.unheard or name == self.gone

    def _handle(self, letter: Letter) -> None:
        name, machine, answer = letter.target, self.machine(letter.target), True
        if machine.is_dead(letter.source):
            return
        if letter.kind is GIFT:
            ticket: Ticket = letter.body
            self._perform(name, machine.take(ticket, True))
            mine = ticket.owner == name
            if not (mine and machine.was_freed(ticket.reference)):
                self.hands[name].append((ticket.reference, None if mine else ticket.fork))
                if letter not in self.unanswered:  # taken before: one more to be dropped
                    self.scripts = {**self.scripts, name: (*self.scripts[name], "drop")}
            # A gift is a call, which runs once: it is not handled again, but may be kept.
            # Its answer says something if it goes to the owner; else no worker waits for it.
            if letter in self.unanswered and mine and ticket.parent:
                self.answers |= {(letter, True)}
            self._answered(letter, True)
            return
        if letter.kind is Kind.RREF_UNREAD:
            self._perform(name, machine.come_to_nothing(letter.body))
            self.answers |= {(letter, True)} if letter in self.unanswered else set()
            return
        reference, fork = letter.body
        match letter.kind:
            case Kind.PYTHON_REMOTE_CALL:
                outcomes, first = machine.created(reference, fork, letter.source)
                if first and reference in self.made:
                    self.wrong.append("made twice")
                self.made |= {reference}
                self._perform(name, outcomes)
            case Kind.RREF_FORK_REQUEST:
                answer = machine.fork_requested(reference, fork, letter.source)
            case Kind.RREF_CHILD_ACCEPT:
                self._perform(name, machine.child_accepted(fork))
            case _:
                self._perform(name, machine.user_deleted(reference, fork))
        if letter in self.unanswered:
            self.answers |= {(letter, answer)}

    def _answered(self, letter: Letter, answer: bool) -> None:
        if letter not in self.unanswered:
            return  # an answer that no caller waits for
        self.unanswered -= {letter}
        if letter.kind in {GIFT, Kind.RREF_UNREAD} or letter.source == self.dead:
            return
        machine, fork = self.machine(letter.source), letter.body[1]
        match letter.kind:
            case Kind.RREF_FORK_REQUEST if not answer:
                outcomes = machine.refused(fork)
                if not self.gone or len(self.unheard) == len(self.machines) - 1:
                    self.wrong.append("refused, and nobody has heard of an end")
            case Kind.RREF_FORK_REQUEST | Kind.PYTHON_REMOTE_CALL:
                outcomes = machine.confirmed(fork)
            case Kind.RREF_USER_DELETE:
                outcomes = machine.deleted(fork)
            case _:
                outcomes = []
        self._perform(letter.source, outcomes)

    def _stop(self, name: str) -> None:
        self.dead = name
        # What it has sent may still arrive, once; what comes back is ignored.
        self.stale |= {one for one in self.unanswered if one.source == name}
        self.unanswered = frozenset(one for one in self.unanswered if one.source != name)
        self.answers = frozenset(one for one in self.answers if one[0].source != name)
        self.hands[name] = []
        self.scripts = {**self.scripts, name: ()}
        self._give_up_on_the_dead()

    def _give_up_on_the_dead(self) -> None:
        """Let those that have heard of an end send no more. Until it stops, it may answer them."""
        if self.dead:
            self.unanswered = frozenset(
                one
                for one in self.unanswered
                if one.target != self.dead or one.source in self.unheard
            )

    def _perform(self, name: str, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case ControlMessage(kind, to, reference, fork):
                    self._tell(Letter(kind, name, to, (reference, fork)))
                case Freed(reference):
                    self._freed(name, reference)

    def _freed(self, owner: str, reference: Number) -> None:
        judge = self.machines[owner]
        for name, hands in self.hands.items():
            for held, fork in hands:
                if held != reference or judge.is_dead(name):
                    continue
                if fork is None:
                    self.wrong.append(f"freed, and held by {name}")
                elif fork.maker == name and reference not in self.made:
                    pass  # it is counted when the request comes
                elif self.machines[name].state_of(fork) is ForkState.CONFIRMED:
                    self.wrong.append(f"freed, and {name} holds {fork}")

    def left(self) -> list[str]:
        return [
            f"{name}: {machine.counts()}"
            for name, machine in self.machines.items()
            if name != self.dead and any(machine.counts().values())
        ]


def clone(machine: References) -> References:
    other = References.__new__(References)
    other.__dict__.update(machine.__dict__)
    other._owned = {
        one: _Owned(dict(owned.forks), owned.created, owned.holds)
        for one, owned in machine._owned.items()
    }
    other._held = {
        one: replace(held, children=dict(held.children)) for one, held in machine._held.items()
    }
    other._parents = dict(machine._parents)
    for name in ("_deleted", "_freed", "_dead"):
        memory = RecentKeys(64)
        memory._known = getattr(machine, name)._known.copy()
        setattr(other, name, memory)
    return other


def digest(machine: References) -> Key:
    return (
        machine._serial,
        tuple(
            sorted(
                (one, tuple(sorted(owned.forks.items())), owned.created, owned.holds)
                for one, owned in machine._owned.items()
            )
        ),
        tuple(sorted((one, digest_fork(held)) for one, held in machine._held.items())),
        frozenset(machine._deleted._known),
        frozenset(machine._freed._known),
        frozenset(machine._dead._known),
    )


def digest_fork(held: Fork) -> Key:
    return (held.state, held.holders, tuple(sorted(held.children.items())))


def explore(scripts: dict[str, tuple[str, ...]], most: int) -> tuple[int, int, list[str]]:
    """Visit every state; return how many there are, how many are ends, and what is wrong."""
    first = Scene(scripts)
    seen = {first.key()}
    todo: list[tuple[Scene, tuple[Any, ...]]] = [(first, ())]
    ends, wrong = 0, []
    while todo and len(seen) < most:
        scene, path = todo.pop()
        moves = scene.moves()
        if all(move[0] in {"expire", "keep"} for move in moves):
            ends += 1
            if scene.left():
                wrong.append(f"left: {scene.left()} after {show(path)}")
        for move in moves:
            after = scene.copy()
            after.do(move)
            if after.wrong:
                wrong.append(f"{after.wrong} after {show((path, move))}")
            key = after.key()
            if key not in seen:
                seen.add(key)
                todo.append((after, (path, move)))
        if len(wrong) > 5:
            break
    return len(seen), ends, wrong


def show(path: tuple[Any, ...]) -> str:
    """Return the moves that led to a state, the first one first."""
    moves: list[str] = []
    while path:
        path, move = path
        moves.append(" ".join(str(part) for part in move))
    return "\n  ".join(["", *reversed(moves)])

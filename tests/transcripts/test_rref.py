"""Stories of remote references, told in tests/transcripts/rref/*.txt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.rpc.rref.protocol import ControlMessage, Freed, Outcome, References
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number, Ticket
from holdfast.testing.transcript import Command

STORIES = sorted((Path(__file__).parent / "rref").glob("*.txt"))


class RRefStory:
    """Workers that count references, and messages that arrive in the order of their sending.

    worker A...           workers of the story
    create A B V          A asks B to make a value, and calls its reference V; B counts A
    give A B V            A passes V to B in a call
    hold A, release A     what A sends waits, until it is released
    drop A V              A drops its reference
    dies A                A is gone, and the others hear so
    """

    def __init__(self) -> None:
        self._workers: dict[str, References] = {}
        self._dead: set[str] = set()
        self._held: dict[str, list[Callable[[], None]]] = {}
        self._values: dict[Number, str] = {}
        self._forks: dict[tuple[str, str], Number | None] = {}
        self._owners: dict[str, str] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._lines: list[str] = []

    def __call__(self, command: Command) -> str:
        self._lines = []
        self._obey(command)
        while self._soon:
            self._soon.popleft()()
        return "\n".join(self._lines)

    def _obey(self, command: Command) -> None:
        args = command.args
        match command.name:
            case "worker":
                self._workers |= {name: References(name) for name in args}
            case "create":
                self._create(*args)
            case "give":
                self._give(*args)
            case "hold":
                self._held[args[0]] = []
            case "release":
                self._soon.extend(self._held.pop(args[0]))
            case "drop":
                self._drop(*args)
            case "dies":
                self._die(args[0])
            case other:
                raise UsageError(f"{other!r}: no command of these stories")

    def _create(self, user: str, owner: str, value: str) -> None:
        ticket = self._workers[user].ask(owner)
        self._values[ticket.reference], self._owners[value] = value, owner
        self._forks[user, value] = ticket.fork
        self._say(f"{user} asks {owner} to make {value}")

        def arrive() -> None:
            outcomes, first = self._workers[owner].created(ticket.reference, ticket.fork, user)
            if first:
                self._say(f"{owner} makes {value}, and counts the fork of {user}")
            self._perform(owner, outcomes)
            confirm = self._workers[user].confirmed
            self._send(owner, user, lambda: self._perform(user, confirm(ticket.fork)))

        self._send(user, owner, arrive)

    def _give(self, giver: str, to: str, value: str) -> None:
        fork = self._forks[giver, value]
        reference = next(number for number, name in self._values.items() if name == value)
        machine = self._workers[giver]
        ticket = machine.give_own(reference, to) if fork is None else machine.give(fork, to)
        if ticket is None:
            self._say(f"{giver} cannot give {value}: it is gone")
            return
        self._say(f"{giver} gives {value} to {to}")
        self._send(giver, to, lambda: self._take(to, value, ticket))

    def _take(self, to: str, value: str, ticket: Ticket) -> None:
        self._say(f"{to} takes {value}")
        self._forks[to, value] = None if ticket.owner == to else ticket.fork
        self._perform(to, self._workers[to].take(ticket))

    def _drop(self, user: str, value: str) -> None:
        fork = self._forks.pop((user, value))
        self._say(f"{user} drops {value}")
        if fork is not None:
            self._perform(user, self._workers[user].drop(fork))
            return
        reference = next(number for number, name in self._values.items() if name == value)
        self._perform(user, self._workers[user].release(reference))

    def _die(self, worker: str) -> None:
        self._dead.add(worker)
        self._held.pop(worker, None)
        del self._workers[worker]
        for name, machine in self._workers.items():
            self._say(f"{name} hears that {worker} is gone")
            self._perform(name, machine.died(worker))
        for (name, value), fork in self._forks.items():
            if name in self._workers and fork is not None:
                lost = self._workers[name].lost(fork)
                if lost is not None:
                    self._say(f"{name}: {value} is of no use: {lost}")

    def _perform(self, worker: str, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Freed(reference):
                    self._say(f"{worker} frees {self._values[reference]}")
                case ControlMessage(kind, to, reference, _):
                    name = kind.name.removeprefix("RREF_")
                    self._say(f"{worker} -> {to}: {name} {self._values[reference]}")
                    self._send(worker, to, partial(self._handle, worker, outcome))

    def _handle(self, sender: str, message: ControlMessage) -> None:
        """Let a message arrive, and its answer."""
        here, there = self._workers[message.to], self._workers.get(sender)
        match message.kind:
            case Kind.RREF_FORK_REQUEST:
                counted = here.fork_requested(message.reference, message.fork, sender)
                self._say(f"{message.to} {'counts' if counted else 'refuses'} the fork of {sender}")
                if there is not None:
                    answer = there.confirmed if counted else there.refused
                    self._perform(sender, answer(message.fork))
            case Kind.RREF_CHILD_ACCEPT:
                self._perform(message.to, here.child_accepted(message.fork))
            case _:
                self._perform(message.to, here.user_deleted(message.reference, message.fork))
                if there is not None:
                    self._perform(sender, there.deleted(message.fork))

    def _send(self, sender: str, to: str, arrive: Callable[[], None]) -> None:
        def unless_dead() -> None:
            if to not in self._dead:
                arrive()

        if sender in self._held:
            self._held[sender].append(unless_dead)
        else:
            self._soon.append(unless_dead)

    def _say(self, line: str) -> None:
        self._lines.append(line)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, transcript: Callable[[Path, Callable[[Command], str]], None]) -> None:
    transcript(path, RRefStory())


def test_there_are_stories() -> None:
    assert len(STORIES) >= 3

"""Stories of calls that are retried, told in tests/transcripts/retry/*.txt."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.errors import PeerLost, UsageError
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.future import Carrier, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.replies import Reply
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.retrying import RetryingCalls
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.server.dedup import DedupTable, DedupVerdict
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.testing.clock import ManualClock
from holdfast.testing.transcript import Command

STORIES = sorted((Path(__file__).parent / "retry").glob("*.txt"))
LIFE = "callee's life"


class RetryStory:
    """One caller and one callee, and the connection between them.

    call SECONDS     the caller makes a call, which it gives up after so long
    breaks           the connection breaks: what is on it is lost, at either side
    slow, quick      requests stay on the connection, or arrive at once
    ends N           the function of call N ends
    advance S        let time pass
    dies             the callee is gone, and the caller hears so
    """

    def __init__(self) -> None:
        self.contact = Contact(WorkerInfo("callee", 1), LIFE, "", "", "")
        self.lost: PeerLost | None = None
        self._clock = ManualClock()
        self._begun = self._clock.monotonic()
        self._tasks: list[tuple[float, Callable[[], None]]] = []
        self._open: list[Reply] = []  # the tries that are under way
        self._on_the_wire: list[Callable[[], None]] = []
        self._slow = False
        self._connection = 0
        self._dedup = DedupTable()
        self._lines: list[str] = []
        self._caller = RetryingCalls(
            WorkerInfo("caller", 0),
            itertools.count(1),
            cast("Scheduler", self),
            self._clock,
        )

    def __call__(self, command: Command) -> str:
        self._lines = []
        args = command.args
        match command.name:
            case "call":
                self._call(float(args[0]))
            case "breaks":
                self._break()
            case "slow" | "quick":
                self._slow = command.name == "slow"
                while self._on_the_wire and not self._slow:
                    self._on_the_wire.pop(0)()
            case "ends":
                self._end(int(args[0]))
            case "advance":
                self._advance(float(args[0]))
            case "dies":
                self.lost = PeerLost("Connection closed by peer (it is gone)", incarnation=LIFE)
                self._caller.lost(LIFE, self.lost)
            case other:
                raise UsageError(f"{other!r}: no command of these stories")
        return "\n".join(self._lines)

    # The caller.

    def _call(self, within_s: float) -> None:
        message = Message(Kind.PYTHON_CALL, 0, b"f", budget_ms=int(1000 * within_s))
        message.given = ("a reference",)  # so that `_hear` is called with the reply
        at = self._clock.monotonic() + within_s
        policy = RetryPolicy(max_retries=3, delay_s=1.0, backoff=2.0)
        _ = self._caller.post(LIFE, lambda: cast("Peer", self), message, self._hear, at, policy)

    def _hear(self, request: Message, future: Future[Any], answer: Message | Exception) -> None:
        if isinstance(answer, Message):
            self._say(f"the caller has the reply to call {answer.call}")
        else:
            self._say(f"the caller gives up: {answer}")

    def post(self, message: Message, reply: Reply, at: float) -> Carrier | None:
        self._say(f"caller -> callee: call {message.call}, at most {message.budget_ms} ms")
        self._open.append(reply)
        arrive = partial(self._arrive, message, reply, self._connection)
        if self._slow:
            self._on_the_wire.append(arrive)
        else:
            arrive()
        return None

    def transmit(self, message: Message) -> None:
        if message.kind is Kind.CANCEL:
            self._say(f"caller -> callee: the reply to call {message.call} is not wanted")
            return
        self._say(f"caller -> callee: calls below {message.call} are over")
        self._dedup.acknowledged("caller", message)
        self._say(f"the callee keeps {self._dedup.kept()} replies")

    def submit(self, task: Callable[[], None], delay_s: float = 0.0) -> None:
        self._tasks.append((self._clock.monotonic() + delay_s, task))

    # The callee.

    def _arrive(self, message: Message, reply: Reply, connection: int) -> None:
        waiter = partial(self._answer, reply, connection)
        verdict, kept = self._dedup.arrived("caller", message.call, waiter)
        match verdict:
            case DedupVerdict.RUN:
                self._say(f"callee: call {message.call} is new: run it")
            case DedupVerdict.WAIT:
                self._say(f"callee: call {message.call} runs already: reply to this try, too")
            case DedupVerdict.ANSWERED if kept is not None:
                self._say(f"callee: call {message.call} has run: send the reply that was kept")
                waiter(kept)
            case _:
                self._say(f"callee: call {message.call} is over at the caller: ignore it")

    def _end(self, call: int) -> None:
        self._say(f"callee: call {call} has run")
        for waiter in self._dedup.answered("caller", call, Message(Kind.REPLY, call)):
            waiter(Message(Kind.REPLY, call))

    def _answer(self, reply: Reply, connection: int, answer: Message) -> None:
        if connection != self._connection:
            self._say("callee -> caller: the reply is lost, its connection is gone")
            return
        self._open.remove(reply)
        reply(answer)

    # What is in between.

    def _break(self) -> None:
        self._connection += 1
        self._on_the_wire.clear()
        tries, self._open = self._open, []
        for reply in tries:
            reply(PeerLost("Connection reset by peer"))
        for at, _ in self._tasks:
            if at >= self._clock.monotonic() + 1.0:  # and no acknowledgement
                self._say(f"the next try is made after {at - self._clock.monotonic():.0f} s")

    def _advance(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while due := sorted(
            (one for one in self._tasks if one[0] <= until), key=lambda one: one[0]
        ):
            self._tasks.remove(due[0])
            self._clock.advance(max(0.0, due[0][0] - self._clock.monotonic()))
            due[0][1]()
        self._clock.advance(max(0.0, until - self._clock.monotonic()))

    def _say(self, line: str) -> None:
        self._lines.append(f"{self._clock.monotonic() - self._begun:7.2f}  {line}")


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, transcript: Callable[[Path, Callable[[Command], str]], None]) -> None:
    transcript(path, RetryStory())


def test_there_are_stories() -> None:
    assert {path.stem for path in STORIES} >= {"lost-reply", "lost-request", "callee-dies"}

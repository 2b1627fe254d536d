"""One worker of the simulated calls: what retries and what answers are real, the rest is not.

A worker makes calls, some of which it cancels, and runs those of others: it answers at once, later,
or with an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from holdfast.clock import Clock
from holdfast.errors import CallCancelled, CallTimedOut, PeerLost
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.future import ASYNC_MARK, Carrier, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.pipe import Reply
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.retrying import Complete, RetriedCall, RetryingCalls
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.rref.table import RRefTable
from holdfast.rpc.server.dispatcher import Dispatcher
from holdfast.rpc.server.event_loop import EventLoop
from holdfast.rpc.values.errors import load_error
from holdfast.rpc.values.pickling import load
from holdfast.rpc.wire.hello import Purpose, WorkerHello
from holdfast.rpc.wire.messages import NEVER, Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo

if TYPE_CHECKING:
    from tests.sim.once.sim import OnceSim

__all__ = ["Call", "Try", "Worker"]


class Call:
    """One call, as the judge knows it."""

    def __init__(self, run: OnceSim, caller: Worker, callee: str, number: int, at: float) -> None:
        self._run = run
        self.caller = caller
        self.callee = callee
        self.number = number
        self.at = at
        self.request: RetriedCall | None = None
        self.runs = 0
        self.outcome: Message | Exception | None = None

    def __str__(self) -> str:
        return f"call {self.number} of {self.caller.me} to {self.callee}"

    def is_open(self) -> bool:
        """Say whether a caller still waits for it."""
        return self.outcome is None and self.caller.alive

    def answer(self) -> bytes:
        """Return the right answer to it."""
        return f"answer {self.number}".encode()

    def ran(self, callee: Worker) -> None:
        """Judge that it is run now."""
        self.runs += 1
        self._run.counts["runs"] += 1
        self._run.sim.note(callee.me, "runs", self)
        if self.runs > 1 or callee.me != self.callee:
            self._run.fail(f"O1: {self} runs at {callee.me}, {self.runs} times in all")
        if self.caller.me in callee.gone:
            self._run.fail(f"O4: {self} runs though its caller has been given up")

    def sent(self, tried: int) -> None:
        """Judge that it is sent now."""
        self._run.sim.note(self.caller.me, "sends", self)
        self._run.counts["retries"] += tried > 1
        if self.outcome is not None or self._run.sim.now >= self.at:
            self._run.fail(f"O3: {self} is sent at {self._run.sim.now}; its time: {self.at}")

    def heard(self, outcome: Message | Exception) -> None:
        """Judge its completion."""
        run = self._run
        run.sim.note(self.caller.me, "hears of", self, repr(outcome)[:60])
        if self.outcome is not None:
            run.fail(f"O2: {self} is completed twice")
        self.outcome = outcome
        if isinstance(outcome, Message) and outcome.kind is Kind.FAILURE:
            run.counts["refused"] += 1
            why = load_error(outcome.body, outcome.buffers)
            if not isinstance(why, PeerLost) or run.is_known(self.caller.me):
                run.fail(f"O2: {self} is refused: {why}")
        elif isinstance(outcome, Message):
            run.counts["answered"] += 1
            if self.runs != 1 or load(outcome.body, ()) != self.answer():
                run.fail(f"O2: {self} ran {self.runs} times and is answered by {outcome.body!r}")
        elif isinstance(outcome, CallTimedOut):
            run.counts["timed out"] += 1
        elif isinstance(outcome, CallCancelled):
            run.counts["cancelled"] += 1
        elif isinstance(outcome, PeerLost):
            run.counts["lost"] += 1
        else:
            run.fail(f"O2: {self} is completed with {outcome!r}")


class Try:
    """One sending of a request: the pipe that it goes by, which answers once or fails once."""

    def __init__(self, run: OnceSim, worker: Worker, reply: Reply, at: float) -> None:
        self._run = run
        self._worker = worker
        self._reply = reply
        self._over = False
        self.limitless = at == NEVER
        if at != NEVER:
            run.later(worker, at - run.sim.now, self._fail, TimeoutError())

    def breaks(self, after_s: float) -> None:
        """Let the connection break."""
        self._run.later(self._worker, after_s, self._fail, PeerLost("Connection reset by peer"))

    def answered(self, answer: Message) -> None:
        """Bring the answer, late ones too: a pipe may have the next try under the same number."""
        self._over = True
        self._reply(answer)

    def _fail(self, error: Exception) -> None:
        if not self._over:
            self._over = True
            self._reply(error)


class _OtherSide:
    """A peer, as its caller sees it."""

    def __init__(self, run: OnceSim, worker: Worker, life: str) -> None:
        self._run = run
        self._worker = worker
        self.contact = Contact(WorkerInfo(life.replace(".", "_"), 0), life, "", "", "")
        self.lost: PeerLost | None = None

    def post(self, message: Message, reply: Reply, at: float) -> Carrier | None:
        return self._worker.post(message, reply, at)

    def transmit(self, message: Message) -> None:
        me, to = self._worker.me, self.contact.incarnation
        callee = self._run.workers[to]
        self._run.carry(me, to, callee.take_note, me, message, via=None)

    def find(self) -> Peer:
        if self.lost is not None:
            raise self.lost.anew()
        return cast("Peer", self)


class Worker:
    """One life of a worker; `alive` until it ends."""

    def __init__(self, run: OnceSim, life: str) -> None:
        self._run = run
        self.me = life
        self.alive = True
        self.paused_until = 0.0
        info = WorkerInfo(life.replace(".", "_"), 0)
        self.gone: set[str] = set()
        """Those of whose end it has heard."""
        self._peers: dict[str, _OtherSide] = {}
        clock = cast("Clock", self)
        self.desk = RetryingCalls(info, itertools.count(1), cast("Scheduler", self), clock)
        self.answerer = Dispatcher(
            info, life, cast("RRefTable", self), cast("EventLoop", self), clock, run.is_known
        )

    # Calling.

    def act(self) -> None:
        """Call a worker, and do so again later."""
        run = self._run
        if run.healed:
            return
        others = run.known_to(self)
        if others:
            call = self.call(run.rng.choice(others))
            if run.rng.random() < 0.1:
                run.later(self, run.rng.random(), self._cancel, call)
        run.later(self, run.rng.random() * 2 * run.plan.every_s, self.act)

    def call(self, to: str, *, patient: bool = False) -> Call:
        """Make a call, with a limit of retries or without one."""
        rng = self._run.rng
        policy = RetryPolicy(
            max_retries=60 if patient else rng.choice((0, 1, 3, 6)),
            delay_s=rng.choice((0.0, 0.05, 0.5)),
            backoff=1.0 if patient else rng.choice((1.0, 1.5)),
            try_s=1.0 if patient else rng.choice((None, 0.1, 0.5, 2.0)),
        )
        within_s = NEVER if patient else rng.choice((NEVER, 0.2, 1.0, 5.0))
        call = Call(self._run, self, to, len(self._run.calls), self._run.sim.now + within_s)
        self._run.calls.append(call)
        self._run.counts["calls"] += 1
        peer = self._peers.setdefault(to, _OtherSide(self._run, self, to))
        budget_ms = 0 if within_s == NEVER else int(within_s * 1000)
        message = Message(Kind.PYTHON_CALL, 0, str(call.number).encode(), budget_ms=budget_ms)
        message.has_references = True  # so that `unpack` reads it
        message.given = (call,)  # so that `heard` is called with the reply
        hear: Complete = partial(_hear, call)
        call.request = self.desk.post(to, peer.find, message, hear, call.at, policy)
        return call

    def _cancel(self, call: Call) -> None:
        if call.request is not None and call.is_open():
            call.request.cancel()

    def died(self, life: str) -> None:
        """Note that a worker is gone."""
        self._run.sim.note(self.me, "hears that", life, "is gone")
        self.gone.add(life)
        self.answerer.died(life)
        peer = self._peers.setdefault(life, _OtherSide(self._run, self, life))
        if peer.lost is None:
            peer.lost = PeerLost("Connection closed by peer (it is gone)", incarnation=life)
        self.desk.lost(life, peer.lost)

    # What retries sends by us (`Peer`), and has us do things later (`Scheduler`, `Clock`).

    def post(self, message: Message, reply: Reply, at: float) -> Carrier | None:
        """Carry a request there; its answer, or its failure, comes back."""
        call = self._run.calls[int(bytes(message.body))]
        call.sent(1 if call.request is None else 2)
        callee, way = self._run.workers[call.callee], Try(self._run, self, reply, at)
        self._run.carry(self.me, callee.me, callee.take_request, self, message, way, via=way)
        return None

    def submit(self, task: Callable[[], None], delay_s: float = 0.0) -> None:
        """Do something later."""
        self._run.later(self, delay_s, task)

    def monotonic(self) -> float:
        """Return the time."""
        return self._run.sim.now

    # Being called.

    def take_request(self, caller: Worker, message: Message, way: Try) -> None:
        """Answer a request."""
        answer = partial(self._answer, caller, way)
        at_once = self.answerer.handle(self._greeting(caller.me), message, answer)
        if at_once is not None:
            answer(at_once)

    def take_note(self, caller: str, message: Message) -> None:
        """Take what is not answered."""
        self.answerer.handle(self._greeting(caller), message, lambda answer: None)

    def _answer(self, caller: Worker, way: Try, answer: Message) -> None:
        self._run.carry(self.me, caller.me, way.answered, answer, via=way)

    def _greeting(self, caller: str) -> WorkerHello:
        return WorkerHello(caller.replace(".", "_"), 0, caller, self.me, Purpose.PIPE)

    def _execute(self, call: Call) -> bytes | Future[bytes]:
        call.ran(self)
        rng = self._run.rng
        if rng.random() < 0.5:
            return call.answer()
        later: Future[bytes] = Future()
        self._run.later(
            self, rng.random() * rng.choice((0.01, 0.3, 2.0)), self._finish, later, call
        )
        return later

    def _finish(self, later: Future[bytes], call: Call) -> None:
        later.set_result(call.answer())

    # What the dispatcher asks of us (`RRefTable`, `EventLoop`): nothing is cancelled.

    def unpack(self, body: Any, buffers: Any) -> tuple[Any, tuple[Call], None]:
        """Return what is to be run."""

        def execute(call: Call) -> bytes | Future[bytes]:
            return self._execute(call)

        setattr(execute, ASYNC_MARK, True)
        return execute, (self._run.calls[int(bytes(body))],), None

    def cancel(self, future: Future[Any]) -> None:
        """Let a coroutine go on: none of these can be cancelled."""


def _hear(call: Call, request: Message, future: Future[Any], outcome: Message | Exception) -> None:
    call.heard(outcome)

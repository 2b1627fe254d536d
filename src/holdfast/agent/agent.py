"""An agent at work: one thread that owns the machine, one queue that brings it events.

The shell around `machine.py`. Everything that may block goes to other threads, which only put what
came of it on the queue: a clerk for what is written to the store, one after the other; a keeper,
which starts the workers, so that they end with it, and releases them; one for each wait for a
round or for the exit barrier; one that reads what the other nodes report.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from signal import Signals
from typing import assert_never

from holdfast.agent.attempt import Attempt, GroupMaker, Membership
from holdfast.agent.clerk import Clerk
from holdfast.agent.effects import (
    Close,
    CountFailure,
    Effect,
    Finish,
    Join,
    Meet,
    Place,
    Publish,
    StartWorkers,
    Stop,
)
from holdfast.agent.exchange import (
    decode_report,
    meet_at_exit,
    publish,
    say_done,
    swap,
    watch_reports,
)
from holdfast.agent.job import Job
from holdfast.agent.machine import AgentMachine, State
from holdfast.agent.narrator import Narrator
from holdfast.agent.outcome import Ending, Outcome
from holdfast.agent.torch_store import Opened, master_of, open_torch_store
from holdfast.agent.vouching import Witness
from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    Fenced,
    HoldfastError,
    InternalError,
    PeerViolation,
    StoreUnavailable,
    UsageError,
)
from holdfast.observe.metrics import Metrics
from holdfast.observe.sinks import LogSink, Sink
from holdfast.process.outcome.failure import WorkerExited
from holdfast.process.output.logs import RunLogs
from holdfast.process.signals import SignalEvents, hear_of_children
from holdfast.process.spec import GroupEnded, forks
from holdfast.records import dataclass
from holdfast.rendezvous.handler import Rendezvous, Round
from holdfast.store.store import Watch
from holdfast.threads import start_thread

__all__ = ["AgentStatus", "Barrier", "ElasticAgent"]

STORE_WITHIN_S = 30.0
SWAP_WITHIN_S = 60.0
END_WITHIN_S = 10.0
SIGNALS_EVERY_S = 0.1
TURN_EVERY_S = 5.0
"""How often the loop turns though nothing happens, so that others can see that it does."""

_log = logging.getLogger("holdfast.agent")

Barrier = Callable[[Round, Callable[[], bool], Deadline], None]
"""Wait until every node of the round is done, or until told that it makes no sense any more."""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What the agent does, for people and probes; `turned_at` is when its loop last turned.

    `ending` is how it ended, once it has.
    """

    state: State
    reason: str
    place: Place | None
    membership: Membership | None
    turned_at: float
    ending: Ending | None = None


class ElasticAgent:
    """Supervises the workers of one node of a run; `run()` does it all, once."""

    def __init__(
        self,
        job: Job,
        rendezvous: Rendezvous,
        logs: RunLogs,
        make_group: GroupMaker,
        *,
        exit_barrier: Barrier = meet_at_exit,
        show: Callable[[AgentStatus], None] = lambda status: None,
        sink: Sink | None = None,
        metrics: Metrics | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._job = job
        self._rendezvous = rendezvous
        self._logs = logs
        self._make_group = make_group
        self._exit_barrier = exit_barrier
        self._show = show
        self._clock = clock
        self._narrator = Narrator(job.run_id, sink or LogSink(), metrics or Metrics(), clock)
        self._machine = AgentMachine(job.terms)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._clerk = Clerk("holdfast-agent-clerk")
        self._keeper = Clerk("holdfast-agent-keeper")
        self._starting = threading.RLock()  # ends of workers are told after their start
        self._attempts = 0
        self._attempt: Attempt | None = None
        self._closing: Attempt | None = None
        self._membership: Membership | None = None
        self._opened = Opened()
        self._ended = False
        self._outcome: Outcome | None = None
        self._shown: tuple[State, str] | None = None
        self._shown_at = self._joining_at = 0.0
        self._turned_at = clock.monotonic()

    def status(self) -> AgentStatus:
        """Return what it does. From any thread."""
        machine, ending = self._machine, self._outcome.ending if self._outcome else None
        told = (machine.place, self._membership, self._turned_at, ending)
        return AgentStatus(machine.state, self._reason(), *told)

    def _reason(self) -> str:
        """Return why it does that; where nodes gather slowly, what they wait for comes first."""
        machine = self._machine
        place, reason = machine.place, machine.reason
        if machine.state is not State.JOINING or self._now() < self._joining_at + TURN_EVERY_S:
            return reason
        progress = self._rendezvous.progress()
        if progress is None or progress.number <= (place.round if place else 0):
            return reason  # no node has told of the next round yet
        return f"{progress.reason}; {reason}" if place else progress.reason

    def pids(self) -> dict[int, int]:
        """Return the processes of the workers that run, by local rank. From any thread."""
        attempt = self._attempt
        return attempt.pids() if attempt is not None else {}

    def run(self) -> Outcome:
        """Do the job and return how it ended.

        Blocks until then. Whatever happens, no worker is left running. Does not
        close the rendezvous: the code that made it does.
        """
        hear_of_children()
        with SignalEvents(self._job.signals, self._signalled):
            try:
                self._rendezvous.subscribe(self._look_soon)
                self._machine.start()
                while True:
                    self._perform()
                    if self._outcome is not None:
                        return self._with_results(self._outcome)
                    self._turn()
            except Exception as error:
                if self._outcome is None:  # else the end has been told
                    self._narrator.ended(Outcome(ending=Ending.BROKEN, reason=repr(error)))
                raise
            finally:
                self._end()

    # The loop.

    def _post(self, act: Callable[[], None]) -> None:
        """Let the loop do this, soon. From any thread, and from signal handlers."""
        self._inbox.put(act)

    def _now(self) -> float:
        return self._clock.monotonic()

    def _turn(self) -> None:
        """Wait for something to happen, and hear it."""
        wake_at = self._machine.next_wake()
        patience = TURN_EVERY_S if wake_at is None else max(0.0, wake_at - self._now())
        if not self._told_of_changes():
            patience = min(patience, self._job.monitor_interval_s)
        act: Callable[[], None] | None = None
        with contextlib.suppress(queue.Empty):
            act = self._inbox.get(timeout=min(patience, TURN_EVERY_S))
        self._turned_at = self._now()
        # First: after a long pause, what became of the workers is no failure of theirs (AG-10).
        self._machine.held(self._rendezvous.held())
        self._machine.tick(self._turned_at)
        if act is not None:
            act()
        self._look()

    def _told_of_changes(self) -> bool:
        """Say whether the rendezvous tells of changes; some backends must be asked."""
        return type(self._rendezvous).subscribe is not Rendezvous.subscribe

    def _look(self) -> None:
        """See what has become of the round, if we are in one."""
        if self._machine.state not in (State.RUNNING, State.STOPPING, State.FINISHED):
            return
        now = self._now()
        # Closing a run ends its round: asked in this order, we never take the one for the other.
        over, ended = self._rendezvous.over(), self._rendezvous.ended()
        if ended is not None:
            self._machine.run_ended(ended.reason, ended.failed, now)
        elif over is not None:
            self._machine.round_over(over, now)
        elif (number := self._rendezvous.nodes_waiting()) > 0:
            self._machine.newcomers(number, now)

    def _look_soon(self) -> None:
        self._post(lambda: None)  # every turn looks

    def _signalled(self, number: int) -> None:
        self._post(lambda: self._obey(Signals(number)))

    def _obey(self, number: Signals) -> None:
        self._narrator.signalled(number)
        if self._closing is not None:
            self._closing.hurry()
        self._machine.signalled(number, self._now())

    def _told(self, event: WorkerExited | GroupEnded) -> None:
        """Hear from the group's thread."""
        with self._starting:
            match event:
                case WorkerExited():
                    self._post(lambda: self._worker_exited(event))
                case GroupEnded(abandoned):
                    self._post(lambda: self._machine.group_ended(abandoned, self._now()))
                case _:
                    assert_never(event)

    def _worker_exited(self, event: WorkerExited) -> None:
        if event.failure is not None and not self._machine.lapsed:
            self._narrator.failed(event.failure)
        self._machine.worker_exited(event, self._now())

    def _perform(self) -> None:
        while effects := self._machine.take_effects():
            for effect in effects:
                self._perform_one(effect)
        self._show_if_new()

    def _show_if_new(self) -> None:
        status = self.status()
        told = (status.state, status.reason)
        gathering = self._shown is not None and self._shown[0] is status.state is State.JOINING
        # Not each of a thousand that come: every turn looks again.
        if told == self._shown or (gathering and self._now() < self._shown_at + TURN_EVERY_S):
            return
        self._shown, self._shown_at = told, self._now()
        self._show(status)

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case Join(why):
                self._joining_at = self._now()
                self._close_attempt()  # what the others report of it is heard until the next begins
                if self._attempts:
                    self._narrator.restarting(why, self._here().failures)
                self._wait(lambda: self._wait_for_round(why))
            case StartWorkers():
                self._start()
            case Stop(number, grace_s, why):
                if self._attempt is not None:
                    self._narrator.stopping(number, grace_s, why)
                    self._attempt.stop(number, grace_s)
            case Publish():
                here = self._here()
                self._clerk.do(self._guarded(lambda: self._publish(here, effect)))
            case CountFailure():
                self._clerk.do(self._guarded(self._count))
            case Meet(timeout_s):
                here = self._here()
                self._narrator.finished()
                self._rendezvous.finish()
                # By the clerk, which is waited for even if a signal makes us leave at once: the
                # round goes on without a node that finished, and would wait for its word.
                self._clerk.do(self._guarded(lambda: self._say_done(here)))
                self._wait(lambda: self._meet(here, timeout_s))
            case Close(reason, failed):
                self._clerk.do(self._guarded(lambda: self._close_run(reason, failed)))
            case Finish(outcome):
                self._narrator.ended(outcome)
                self._outcome = outcome
            case _:
                assert_never(effect)

    # On the loop's thread.

    def _start(self) -> None:
        number, self._attempts = self._attempts, self._attempts + 1
        member = self._member()
        self._narrator.starting(member)
        try:
            attempt = Attempt(self._job, number, member, self._logs, self._make_group, self._told)
            self._attempt = attempt
            start = self._guarded(lambda: self._start_workers(attempt, member))
            if forks(self._job.entrypoint):  # which needs what belongs to this thread
                start()
            else:
                self._keeper.do(start)
        except HoldfastError as error:
            self._machine.start_failed(error)

    def _joined(self, membership: Membership, opened: Opened) -> None:
        here = membership.here
        self._opened.close()
        self._membership, self._opened = membership, opened
        if opened.reports is not None:
            watch = opened.reports
            self._wait(lambda: self._read_reports(here, watch))
        own = membership.nodes[here.rank].workers
        place = Place(here.number, here.rank, here.world_size, own, here.failures)
        self._machine.joined(place, self._now())

    def _member(self) -> Membership:
        if self._membership is None:
            raise InternalError("the agent works in a round that it never joined")
        return self._membership

    def _here(self) -> Round:
        return self._member().here

    def _close_attempt(self) -> None:
        """Let go of the last attempt: its workers have ended."""
        if self._attempt is not None:
            self._closing, self._attempt = self._attempt, None
            self._keeper.do(self._guarded(self._closing.close))
        self._opened.close_torch_store()

    def _with_results(self, outcome: Outcome) -> Outcome:
        if outcome.ending is not Ending.SUCCEEDED or self._attempt is None:
            return outcome
        return replace(outcome, results=self._attempt.results())

    def _end(self) -> None:
        self._ended = True
        while not self._inbox.empty():  # a round may have come at the last moment
            self._inbox.get()()
        if self._attempt is not None and self._outcome is None:
            self._attempt.stop(Signals.SIGKILL, 0.0)  # they may be being started still
        self._close_attempt()
        self._opened.close()
        while not self._keeper.close(SIGNALS_EVERY_S):  # whatever it does has its own deadline
            self._turned_at = self._now()
            while not self._inbox.empty():  # a signal hurries it
                self._inbox.get()()
        if not self._clerk.close(END_WITHIN_S):
            _log.warning("run %s: the store did not take the last words", self._job.run_id)

    # What blocks, on threads of its own.

    def _start_workers(self, attempt: Attempt, member: Membership) -> None:
        with self._starting:
            try:
                pids = attempt.start()
            except HoldfastError as error:
                self._post(partial(self._machine.start_failed, error))
                return
            if pids:  # else they were stopped before
                self._post(lambda: self._narrator.started(member, pids))

    def _guarded(self, errand: Callable[[], object]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                errand()
            except HoldfastError as error:
                self._post(partial(self._machine.broke, error))
            except Exception as error:  # a thread that dies must not leave the loop waiting
                _log.error("the agent failed", exc_info=error)
                bug = InternalError(f"a bug in holdfast: {error!r}")
                self._post(partial(self._machine.broke, bug))

        return guarded

    def _wait(self, errand: Callable[[], None]) -> None:
        guarded = self._guarded(errand)
        start_thread(threading.Thread(target=guarded, name="holdfast-agent-wait", daemon=True))

    def _wait_for_round(self, why: str) -> None:
        while True:
            try:
                here = self._rendezvous.next_round(why)
            except HoldfastError as error:
                self._post(partial(self._machine.join_failed, error, self._now()))
                return
            opened = Opened(open_torch_store(self._job, here))
            try:
                membership = self._become_member(here, opened)
            except HoldfastError:
                opened.close()
                raise
            if membership is not None:
                self._post(partial(self._joined, membership, opened))
            if membership is None or self._ended:
                opened.close()
            if membership is not None:
                return
            why = self._rendezvous.over() or "the round ended before it began"

    def _become_member(self, here: Round, opened: Opened) -> Membership | None:
        """Exchange what the nodes of the round need to know; None if it ended meanwhile."""
        deadline = Deadline.after(SWAP_WITHIN_S, self._clock)
        torch_store = opened.torch_store is not None
        over = self._rendezvous.over
        job = self._job
        swapped = swap(here, job.node, torch_store, lambda: over() is not None, deadline, job.alike)
        if swapped is None:
            return None
        if here.rank > 0 and swapped[1]:
            opened.witness = Witness(here)
            try:
                opened.witness.start(master_of(job, here), deadline)
            except Fenced:
                return None
        if here.world_size > 1:
            opened.reports = watch_reports(here, deadline)
        return Membership(here, *swapped)

    def _meet(self, here: Round, timeout_s: float) -> None:
        trouble = None
        try:
            self._exit_barrier(
                here,
                lambda: self._machine.state is not State.FINISHED,
                Deadline.after(timeout_s, self._clock),
            )
        except StoreUnavailable:
            raise  # the caller reports it: what became of the others cannot be known (AG-7)
        except Exception as error:  # whatever it is, the workers are done (AG-7)
            trouble = str(error) or repr(error)
        self._post(lambda: self._machine.met(here.number, trouble, self._now()))

    def _read_reports(self, here: Round, watch: Watch) -> None:
        try:
            for change in watch:
                node = int(change.key.rpartition("/")[2])
                if node != here.rank and change.value is not None:
                    self._hear(here.number, node, change.value)
        except UsageError:
            pass  # closed, since the attempt is over

    def _hear(self, number: int, node: int, report: bytes) -> None:
        try:
            failures, final = decode_report(report, self._clock.wall())
        except PeerViolation as error:
            _log.warning("run %s: node %d: %s", self._job.run_id, node, error)
            return
        self._post(lambda: self._machine.peer_told(number, node, failures, final, self._now()))

    # The clerk's errands.

    def _publish(self, here: Round, effect: Publish) -> None:
        deadline = Deadline.after(STORE_WITHIN_S, self._clock)
        try:
            publish(here, effect.failures, effect.final, self._clock.wall(), deadline)
        except HoldfastError as error:  # the others learn of the round's end anyway
            _log.warning("run %s: a failure could not be told: %s", self._job.run_id, error)

    def _say_done(self, here: Round) -> None:
        try:
            say_done(here, Deadline.after(STORE_WITHIN_S, self._clock))
        except HoldfastError as error:  # the others wait in vain, but not for ever
            _log.warning("run %s: our end could not be told: %s", self._job.run_id, error)

    def _count(self) -> None:
        try:
            failures = self._rendezvous.count_failure(timeout=STORE_WITHIN_S)
        except HoldfastError as error:
            self._post(partial(self._machine.count_failed, error, self._now()))
            return
        wall = self._clock.wall()
        self._post(lambda: self._machine.counted(failures.count, failures.times, wall, self._now()))

    def _close_run(self, reason: str, failed: bool) -> None:
        try:
            self._rendezvous.close(reason, failed=failed)
        except HoldfastError as error:
            _log.warning("run %s: it could not be closed: %s", self._job.run_id, error)

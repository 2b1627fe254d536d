"""An agent at work: one thread that owns the machine, one queue that brings it events.

The shell around `machine.py`. Everything that may block goes to other threads, which only put what
came of it on the queue: a writer for what is written to the store, in order; a keeper,
which starts the workers, so that they end with it, and releases them; one for each wait for a
round or for the exit barrier; one that reads what the other nodes report.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from signal import Signals
from typing import assert_never

from holdfast.agent import inputs
from holdfast.agent.attempt import Attempt, AttemptPlace, GroupMaker, Membership
from holdfast.agent.effects import (
    Close,
    CountFailure,
    Effect,
    Finish,
    Join,
    Meet,
    Place,
    Publish,
    Remember,
    StartWorkers,
    Stop,
)
from holdfast.agent.exchange import meet_at_exit, swap, watch_reports
from holdfast.agent.job import Job
from holdfast.agent.machine import AgentMachine
from holdfast.agent.narrator import Narrator
from holdfast.agent.outcome import Ending, Outcome
from holdfast.agent.pace import Pace
from holdfast.agent.progress_watch import ProgressWatch
from holdfast.agent.report_reader import read_reports
from holdfast.agent.restarts import Restarts
from holdfast.agent.run_writer import RunWriter
from holdfast.agent.status import AgentStatus, WaitForRound
from holdfast.agent.task_thread import TaskThread
from holdfast.agent.terms import State
from holdfast.agent.torch_store import Opened, master_of, open_torch_store
from holdfast.agent.vouching import Witness
from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    Fenced,
    HoldfastError,
    InternalError,
    StoreUnavailable,
)
from holdfast.observe.metrics import Metrics
from holdfast.observe.recorder import Recorder, Recording
from holdfast.observe.sinks import LogSink, Sink
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.outcome.stacks import WorkerStack
from holdfast.process.output.logs import RunLogs
from holdfast.process.signals import SignalEvents, hear_of_children
from holdfast.process.spec import GroupEnded, forks
from holdfast.rendezvous.handler import Rendezvous, Round
from holdfast.threads import start_thread

__all__ = ["Barrier", "ElasticAgent"]

SWAP_WITHIN_S = 60.0
END_WITHIN_S = 10.0
SIGNALS_EVERY_S = 0.1
TURN_EVERY_S = 5.0
"""How often the loop turns though nothing happens, so that others can see that it does."""
ATTEMPTS_KEPT = 100
"""Of so many attempts is known which ranks they had."""
COUNT_EVERY_S = 1.0
"""How often it tells how much longer it waits for a round."""

_LOOKING = (State.RUNNING, State.STOPPING, State.BACKOFF, State.FINISHED)
_WAITING = (State.JOINING, State.BACKOFF)

_log = logging.getLogger("holdfast.agent")

Barrier = Callable[[Round, Callable[[], bool], Deadline], None]
"""Wait until every node of the round is done, or until told that it makes no sense any more."""


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
        self._recorder = Recorder(inputs.AGENT, self._machine)
        self._wanted: list[Effect] = []
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._writer = TaskThread("holdfast-agent-writer")
        self._written = RunWriter(rendezvous, self._post, clock)
        self._keeper = TaskThread("holdfast-agent-keeper")
        self._starting = threading.RLock()  # ends of workers are told after their start
        self._attempts = 0
        self._places: deque[AttemptPlace] = deque(maxlen=ATTEMPTS_KEPT)
        self._attempt: Attempt | None = None
        self._closing: Attempt | None = None
        self._membership: Membership | None = None
        self._opened = Opened()
        self._ended = False
        self._outcome: Outcome | None = None
        self._restarts = Restarts()
        self._joins_for = ""
        self._progress = ProgressWatch(
            job.host, job.stall_after_s, start=self._wait, stalled=self._stalled, clock=clock
        )
        self._wait_for = WaitForRound()
        self._shown: tuple[State, str, str, int | None] | None = None
        self._turned_at = clock.monotonic()

    def status(self) -> AgentStatus:
        """Return what it does. From any thread."""
        machine, place = self._machine, self._machine.place
        waiting, left_s = "", None
        if machine.state is State.JOINING:
            last_round = place.round if place else 0
            waiting, left_s = self._wait_for.explain(
                self._rendezvous.progress(), last_round, self._now()
            )
        elif machine.state is State.BACKOFF:
            left_s = max(0.0, machine.resume_at - self._now())
        return AgentStatus(
            machine.state,
            machine.reason,
            place,
            self._membership,
            self._turned_at,
            ending=self._outcome.ending if self._outcome else None,
            waiting=waiting,
            left_s=left_s,
            restarts=self._restarts,
            logs=None if self._logs.temporary else self._logs.folder,
        )

    def pids(self) -> dict[int, int]:
        """Return the processes of the workers that run, by local rank. From any thread."""
        attempt = self._attempt
        return attempt.pids() if attempt is not None else {}

    def stacks(self, ranks: Collection[int] | None) -> list[WorkerStack]:
        """Return where the workers of these ranks are, or all; blocks for a second. Any thread."""
        attempt = self._attempt
        return attempt.stacks(ranks) if attempt is not None else []

    def paces(self) -> dict[int, Pace]:
        """Return how fast the workers of this node are, by rank. From any thread."""
        return self._progress.paces()

    def attempts(self) -> list[AttemptPlace]:
        """Return its last attempts to run workers. From any thread."""
        return list(self._places)

    def run(self) -> Outcome:
        """Do the job and return how it ended.

        Blocks until then. Whatever happens, no worker is left running. The rendezvous stays open.
        """
        hear_of_children()
        with SignalEvents(self._job.signals, self._signalled):
            try:
                self._rendezvous.subscribe(lambda: self._post(lambda: None))  # every turn looks
                self._step(inputs.AgentBegins())
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

    def recording(self) -> Recording:
        """Return the machine's last steps. From any thread."""
        return self._recorder.recording()

    # The loop.

    def _step(self, event: inputs.AgentInput) -> None:
        self._wanted += self._recorder.step(event, self._now())

    def _post(self, act: inputs.AgentInput | Callable[[], None]) -> None:
        """Let the loop give the machine this, or do it, soon. From any thread or signal handler."""
        self._inbox.put(act if callable(act) else partial(self._step, act))

    def _now(self) -> float:
        return self._clock.monotonic()

    def _turn(self) -> None:
        """Wait for something to happen, and hear it."""
        wake_at = self._machine.next_wake()
        wait_s = TURN_EVERY_S if wake_at is None else max(0.0, wake_at - self._now())
        if self._machine.state is State.RUNNING:
            wait_s = min(wait_s, self._progress.every_s)
        if not self._told_of_changes():
            wait_s = min(wait_s, self._job.monitor_interval_s)
        act: Callable[[], None] | None = None
        with contextlib.suppress(queue.Empty):
            waiting = self._machine.state in _WAITING
            act = self._inbox.get(timeout=min(wait_s, COUNT_EVERY_S if waiting else TURN_EVERY_S))
        self._turned_at = self._now()
        # First: after a long pause, what became of the workers is no failure of theirs (AG-10).
        self._step(inputs.Held(self._rendezvous.held()))
        self._step(inputs.AgentTick())
        if act is not None:
            act()
        self._progress.look(self._attempt, runs=self._machine.state is State.RUNNING)
        self._look()

    def _told_of_changes(self) -> bool:
        """Say whether the rendezvous tells of changes; some backends must be asked."""
        return type(self._rendezvous).subscribe is not Rendezvous.subscribe

    def _look(self) -> None:
        """See what has become of the round, if we are in one."""
        if self._machine.state not in _LOOKING:
            return
        # Closing a run ends its round: asked in this order, we never take the one for the other.
        over, ended = self._rendezvous.over(), self._rendezvous.ended()
        if ended is not None:
            self._step(inputs.SawRunEnded(ended.reason, ended.failed))
        elif over is not None:
            self._step(inputs.SawRoundOver(over))
        elif (number := self._rendezvous.nodes_waiting()) > 0:
            self._step(inputs.SawNewcomers(number))

    def _signalled(self, number: int) -> None:
        self._post(lambda: self._obey(Signals(number)))

    def _obey(self, number: Signals) -> None:
        self._narrator.signalled(number)
        if self._closing is not None:
            self._closing.hurry()
        self._step(inputs.SignalCame(number))

    def stop(self, by: str, grace_s: float | None) -> None:
        """Stop the whole job, as this user wants; returns at once. From any thread."""
        self._post(lambda: self._obey_user(by, grace_s))

    def _obey_user(self, by: str, grace_s: float | None) -> None:
        self._narrator.stop_asked(by)
        self._step(inputs.StopAsked(by, grace_s))

    def _told(self, event: WorkerExited | GroupEnded) -> None:
        """Hear from the group's thread."""
        with self._starting:
            self._post(lambda: self._workers_ended(event))

    def _workers_ended(self, event: WorkerExited | GroupEnded) -> None:
        failure = event.failure if isinstance(event, WorkerExited) else None
        if failure is not None and not self._machine.lapsed:
            self._narrator.failed(failure)
        self._step(event)

    def _stalled(self, attempt: Attempt, failure: Failure) -> None:
        """Hear, on a thread of its own, that workers of an attempt make no progress."""
        self._post(lambda: self._note_stall(attempt, failure))

    def _note_stall(self, attempt: Attempt, failure: Failure) -> None:
        if attempt is self._attempt and self._machine.state is State.RUNNING:
            self._narrator.failed(failure)
            self._step(inputs.WorkersStalled(failure))

    def _perform(self) -> None:
        while effects := self._wanted:
            self._wanted = []
            for effect in effects:
                self._perform_one(effect)
        self._show_if_new()

    def _show_if_new(self) -> None:
        status = self.status()
        left_s = None if status.left_s is None else round(status.left_s)
        told = (status.state, status.reason, status.waiting, left_s)
        if told != self._shown:
            self._shown = told
            self._show(status)

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case Join(why, cause):
                self._wait_for.begin(self._now(), self._job.join_s)
                self._close_attempt()  # what the others report of it is heard until the next begins
                self._joins_for = cause or why
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
                self._writer.submit(self._guarded(lambda: self._written.publish(here, effect)))
            case CountFailure(compared):
                here = self._here()
                self._writer.submit(self._guarded(lambda: self._written.count(here, compared)))
            case Remember():
                here = self._here()
                self._writer.submit(self._guarded(lambda: self._written.remember(here, effect)))
            case Meet(timeout_s):
                here = self._here()
                self._narrator.finished()
                self._rendezvous.finish()
                # On the writer, which is waited for even if a signal makes us leave at once: the
                # round goes on without a node that finished, and would wait for its report.
                self._writer.submit(self._guarded(lambda: self._written.say_done(here)))
                self._wait(lambda: self._meet(here, timeout_s))
            case Close(reason, failed):
                self._writer.submit(self._guarded(lambda: self._written.close_run(reason, failed)))
            case Finish(outcome):
                self._narrator.ended(outcome)
                self._outcome = outcome
            case _:
                assert_never(effect)

    # On the loop's thread.

    def _start(self) -> None:
        number, self._attempts = self._attempts, self._attempts + 1
        if number:
            self._restarts = self._restarts.plus(self._joins_for)
        member = self._member()
        ranks = [one.rank for one in member.ranks()]
        self._places.append(AttemptPlace(number, member.here.number, ranks[0], len(ranks)))
        self._narrator.starting(member)
        try:
            attempt = Attempt(self._job, number, member, self._logs, self._make_group, self._told)
            self._attempt = attempt
            start = self._guarded(lambda: self._start_workers(attempt, member))
            if forks(self._job.entrypoint):  # which needs what belongs to this thread
                start()
            else:
                self._keeper.submit(start)
        except HoldfastError as error:
            self._step(inputs.StartFailed(error))

    def _joined(self, membership: Membership, opened: Opened) -> None:
        here = membership.here
        self._opened.close()
        self._membership, self._opened = membership, opened
        if opened.reports is not None:
            watch = opened.reports
            run_id = self._job.run_id
            self._wait(lambda: read_reports(run_id, here, watch, self._post, self._clock))
        own = membership.share.workers
        place = Place(here.number, here.rank, here.world_size, own, here.failures)
        self._step(inputs.Joined(place))

    def _member(self) -> Membership:
        if self._membership is None:
            raise InternalError("the agent works in a round that it never joined")
        return self._membership

    def _here(self) -> Round:
        return self._member().here

    def _close_attempt(self) -> None:
        """Release the last attempt: its workers have ended."""
        if self._attempt is not None:
            self._closing, self._attempt = self._attempt, None
            self._keeper.submit(self._guarded(self._closing.close))
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
        if not self._writer.close(END_WITHIN_S):
            _log.warning("run %s: the store did not take the last writes", self._job.run_id)

    # What blocks, on threads of its own.

    def _start_workers(self, attempt: Attempt, member: Membership) -> None:
        with self._starting:
            try:
                pids = attempt.start()
            except HoldfastError as error:
                self._post(inputs.StartFailed(error))
                return
            if pids:  # else they were stopped before
                self._post(lambda: self._narrator.started(member, pids))

    def _guarded(self, task: Callable[[], object]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                task()
            except HoldfastError as error:
                self._post(inputs.Broke(error))
            except Exception as error:  # a thread that dies must not leave the loop waiting
                _log.error("the agent failed", exc_info=error)
                self._post(inputs.Broke(InternalError(f"a bug in holdfast: {error!r}")))

        return guarded

    def _wait(self, task: Callable[[], None]) -> None:
        guarded = self._guarded(task)
        start_thread(threading.Thread(target=guarded, name="holdfast-agent-wait", daemon=True))

    def _wait_for_round(self, why: str) -> None:
        while True:
            try:
                here = self._rendezvous.next_round(why)
            except HoldfastError as error:
                self._post(inputs.JoinFailed(error))
                return
            opened = Opened(open_torch_store(self._job, here, again=self._attempts > 0))
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
        self._post(inputs.BarrierOver(here.number, trouble))

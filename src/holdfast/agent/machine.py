"""What an agent does when something happens: the workers of one node, round after round.

Rule 1: every decision about the workers of a node is in this file, in `course.py`, which says how
    it goes on, in `policy.py` and in `rules.py`.
Rule 2: this file does no I/O and reads no clock. The shell (`agent.py`) performs the effects and
    tells the machine what came of each.

    JOINING ──▶ RUNNING ──▶ FINISHED ──▶ ENDED
     ▲   ▲         │            │
     │   │         ▼            │ (the round ends before all are finished)
     │   └───── STOPPING ◀──────┘
  BACKOFF ◀────────┤
                   │ (no restart is left, or allowed)
                   ▼
               GATHERING ──▶ ENDED

A failure of one worker restarts all workers of the job: each node stops its own, and asks for the
next round. So does a change of the members. What sets them apart is the budget: only failures
count against it, one for each round however many workers fail in it, in an account that all nodes
share.

Guarantees
    AG-1  Workers of at most one round run at a time: none are started before the last ones ended.
    AG-2  However many things end a round at once, one wish for the next comes of it.
    AG-3  After a failure of its own, a node asks for the next round only if the job's account
          allows it; else it closes the run as failed. A node that finds the account overdrawn when
          its round began does so too: the node that should have closed the run may have died.
    AG-4  A failure is first counted and then published, before anything that ends the round: what
          the others do about it can no longer keep it out of the account.
    AG-5  A signal makes the node leave, and never closes the run; an error of its own does. What
          was decided before the signal stays: it hides neither a failure nor a success.
    AG-6  Beside a worker that cannot be killed none is ever started; the agent ends and names it.
    AG-7  The exit barrier cannot fail the job, by its timeout or an error of its own, and after a
          failure no node waits in it. But a node that loses the store there does not succeed: it
          cannot know whether the others are done, nor work again if they are not.
    AG-8  Everything ends in one `Finish`; nothing is wanted after it.
    AG-9  An agent that breaks while a failure is handled, up to the start of the next round, ends
          with this failure as well: what went wrong first is told.
    AG-10 Workers run only while this node surely holds its place in the round: they are stopped
          when the end of its lease comes near, killed before the lease can have ended elsewhere,
          and not started after that. What becomes of them then is no failure of the job.
    AG-11 A user's stop closes the run for every node, and this node ends as stopped by that user;
          but a failure that had ended the job before is what it ends with.
    AG-12 The restart rules judge the first cause of a round, on the node whose worker it was, and
          before they end the job this node waits for what the others know, GATHER_S at most. All
          others learn of it as they learn that the budget is spent: the run is closed as failed.
    AG-13 After a failure all nodes of the round pause equally before they ask for the next one. A
          signal, a stop and the end of the run end the pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from signal import Signals

from holdfast.agent.course import GATHER_S, NOT_HELD, Course
from holdfast.agent.effects import Join, Place, StartWorkers
from holdfast.agent.known import KnownFailures
from holdfast.agent.outcome import (
    Ending,
    Outcome,
    broken,
    closed_as,
    name_cause,
    sentence,
    signalled_by,
    stopped_by,
)
from holdfast.agent.terms import State, Terms
from holdfast.errors import HoldfastError, InternalError, RendezvousClosed, RunOver, WorkersStuck
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.rendezvous.effects import LeaseHeld

__all__ = ["GATHER_S", "NOT_HELD", "AgentMachine", "State", "Terms"]


class AgentMachine(Course):
    """The machine of one agent."""

    # What happens.

    def start(self) -> None:
        """Begin: ask for a place in a round."""
        self._join("")

    def held(self, held: LeaseHeld | None) -> None:
        """Hear until when this node's place in its round is its own; None: for ever."""
        self._held = held

    def joined(self, place: Place, now: float) -> None:
        """Hear that a round is complete and this node is in it."""
        if self.state is not State.JOINING:
            return
        if self._held is not None and now >= self._held.stop_at:  # AG-10
            self._join(NOT_HELD)
            return
        budget = self._terms.budget
        if budget.window_s is None and place.failures > budget.max_restarts:
            self._overdrawn(place)
            return
        self.place = place
        self._running = set(range(place.workers))
        self._failures = KnownFailures()
        self._forgiven = ()
        self._after = self._verdict = self._restart = None
        self._group_alive, self.lapsed = True, False
        self._go(State.RUNNING, f"node {place.node} of {place.nodes} in round {place.round}")
        self._effects.append(StartWorkers(place))

    def join_failed(self, error: HoldfastError, now: float) -> None:
        """Hear that no round will come."""
        if self.state is not State.JOINING:
            return
        if isinstance(error, RunOver) or not isinstance(error, RendezvousClosed):
            self._break(error)
        elif not error.failed:
            self._finish(Ending.NOT_NEEDED, str(error))
        else:
            self._gather_all(str(error), now)

    def start_failed(self, error: HoldfastError) -> None:
        """Hear that the workers could not be started; nothing of them is left."""
        if self.state is State.ENDED:
            return
        self._group_alive = False
        self._close_run(f"a node could not start its workers: {error}", failed=True)
        self._break(error)

    def worker_exited(self, told: WorkerExited, now: float) -> None:
        """Hear that a worker has ended."""
        self._running.discard(told.local_rank)
        failure = None if self.lapsed else told.failure
        if self.state is State.RUNNING:
            if failure is not None:
                self._failed(failure)
            elif not self._running:
                self._finished()
        elif self.state is State.STOPPING and failure is not None:
            self._failures.own.append(failure)
            self._tell_if_first()

    def stalled(self, failure: Failure) -> None:
        """Hear that workers that run make no progress: as if one of them had failed so."""
        if self.state is State.RUNNING:
            self._failed(failure)

    def group_ended(self, abandoned: Sequence[int], now: float) -> None:
        """Hear that none of the workers runs any more, or that no more can be done about them."""
        self._group_alive = False
        if abandoned and self.state is not State.ENDED:
            pids = ", ".join(map(str, abandoned))
            self._break(
                WorkersStuck(
                    f"SIGKILL did not end process {pids}: this node leaves the job",
                    pids=tuple(abandoned),
                )
            )
        else:
            self._proceed(now)

    def counted(
        self,
        count: int,
        times: tuple[float, ...],
        wall: float,
        now: float,
        before: tuple[str, ...] = (),
    ) -> None:
        """Hear how many failures the job has had, with ours, and what those before it were."""
        if self.state is not State.STOPPING:
            return
        self._count, self._before = count, before
        verdict = self._terms.budget.decide(count, times, wall)
        self._restart, self._verdict = verdict.restart, verdict.reason
        if not verdict.restart:  # also if a signal came meanwhile: the account is the job's
            self._after = None
            self._close_run(f"{self._cause()}; {verdict.reason}", failed=True)
        self._proceed(now)

    def count_failed(self, error: HoldfastError, now: float) -> None:
        """Hear that our failure could not be counted."""
        if self.state is not State.STOPPING:
            return
        if isinstance(error, RendezvousClosed) and error.failed:
            self._after, self._restart, self._verdict = None, False, str(error)
        elif self._after is not None:
            return
        elif isinstance(error, RendezvousClosed):  # the others were done in a round of their own
            self._after = closed_as(str(error), failed=False)
        else:
            self.broke(error)
        self._proceed(now)

    def peer_told(
        self, number: int, node: int, failures: tuple[Failure, ...], final: bool, now: float
    ) -> None:
        """Hear which workers of another node of a round have failed."""
        if number != self._round():
            return
        self._failures.peers[node] = failures
        if final:
            self._failures.told_all.add(node)
        if failures and self.state in (State.RUNNING, State.FINISHED):
            self._over(sentence(failures[0]), now, name_cause(failures[0]))
        elif self.state is State.STOPPING:
            self._tell_if_first()
            if self._hear_by is not None:
                self._proceed(now)
        elif self.state is State.GATHERING:
            self._gather(now)

    def round_over(self, reason: str, now: float) -> None:
        """Hear that the round is over: a member is gone, or asks for a new one."""
        if self.state in (State.RUNNING, State.FINISHED):
            self._over(reason, now)

    def newcomers(self, number: int, now: float) -> None:
        """Hear that nodes wait to come in."""
        if self.state is State.RUNNING:
            self._over(f"{number} more waiting to join", now)

    def run_ended(self, reason: str, failed: bool, now: float) -> None:
        """Hear that a node has closed the run."""
        match self.state:
            case State.RUNNING:
                self._after = closed_as(reason, failed=failed)
                self._stop_workers(Signals.SIGTERM, f"the run is closed: {reason}")
            case State.STOPPING if isinstance(self._after, Join):
                self._after = closed_as(reason, failed=failed)
            case State.BACKOFF:
                self._ask()  # and hear it as any node does that asks for a round
            case State.FINISHED if failed:
                self._gather_all(reason, now)
            case State.FINISHED:
                self._finish(Ending.SUCCEEDED, reason)
            case _:
                pass  # our own closing, or the end comes anyway

    def signalled(self, number: Signals, now: float) -> None:
        """Hear that a signal tells this agent to stop."""
        if self.state is State.ENDED:
            return
        self._signals += 1
        if self._hear_by is not None:
            self._proceed(now)  # which gives up (AG-5)
            return
        if self.state is State.GATHERING:
            self._gather(now)
            return
        outcome = signalled_by(number, self._failures.all())
        why = outcome.reason
        if not self._group_alive:
            self._end(outcome)
            return
        if not self._is_decided():
            self._after = outcome
        # A repeated signal asks for a stop without grace.
        grace_s = self._terms.grace_s if self._signals == 1 else 0.0
        self._stop_workers(number, why, grace_s)
        key = "Ctrl-C" if number is Signals.SIGINT else number.name
        if grace_s:
            self.reason += f"; the workers have {grace_s:g} s to end, a second {key} kills them"

    def stop_asked(self, by: str, grace_s: float | None, now: float) -> None:
        """Hear that a user stops the whole job, with this grace, or with ours (AG-11)."""
        if self.state is State.ENDED:
            return
        failures = self._failures.all()
        outcome = stopped_by(by, failures)
        self._close_run(outcome.reason, failed=True)
        if self.state is State.GATHERING and failures:
            self._finish_failed()
        elif not self._group_alive:
            self._end(outcome)
        else:
            after = self._after
            by_closing = isinstance(after, Outcome) and after.ending is Ending.FAILED
            if not self._is_decided() or (by_closing and not failures):
                self._after = outcome
            self._stop_workers(Signals.SIGTERM, outcome.reason, grace_s)

    def met(self, round_number: int, trouble: str | None, now: float) -> None:
        """Hear that the exit barrier is over; `trouble` says what went wrong with it."""
        if self.state is not State.FINISHED or self._round() != round_number:
            return
        if trouble is not None:
            self._finish(Ending.SUCCEEDED, f"finished; the exit barrier: {trouble}")
            return
        self._close_run("all workers are done", failed=False)
        self._finish(Ending.SUCCEEDED, "all workers are done")

    def broke(self, error: HoldfastError) -> None:
        """Hear that the agent itself, or its store, cannot go on."""
        if self.state is State.ENDED:
            return
        ending = self.state in (State.GATHERING, State.FINISHED)
        if isinstance(error, InternalError) and not ending:
            # Our own fault: no node could say what has become of this node's part (AG-5).
            self._close_run(f"an agent failed: {error}", failed=True)
        if self.state is State.GATHERING:
            self._finish_failed()  # what went wrong first is known
        elif not self._group_alive:
            self._break(error)
        elif self.state is not State.STOPPING:
            self._after = broken(error)
            self._stop_workers(Signals.SIGTERM, str(error))
        elif not isinstance(self._after, Outcome) and self._restart is not False:
            self._after = broken(error)

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self.state is State.GATHERING:
            self._gather(now)
        elif self.state is State.BACKOFF and now >= self.resume_at:
            self._ask()
        elif self._hear_by is not None:
            self._proceed(now)
        elif self._held is not None and self._is_at_work() and now >= self._held.stop_at:
            self._lapse(self._held, now)

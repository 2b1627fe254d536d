"""What an agent does when something happens: the workers of one node, round after round.

Rule 1: every decision about the workers of a node is in this file and in `policy.py`.
Rule 2: this file does no I/O and reads no clock. The shell (`agent.py`) performs the effects and
    tells the machine what came of each.

    JOINING ──▶ RUNNING ──▶ FINISHED ──▶ ENDED
       ▲           │            │
       │           ▼            │ (the round ends before all are finished)
       └─────── STOPPING ◀──────┘
                   │ (no restart is left)
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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from signal import Signals

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
from holdfast.agent.outcome import Ending, Outcome, name_cause, sentence, stopped_by
from holdfast.agent.terms import State, Terms
from holdfast.errors import HoldfastError, InternalError, RendezvousClosed, RunOver, WorkersStuck
from holdfast.process.outcome.failure import Failure, WorkerExited, first_cause
from holdfast.rendezvous.effects import LeaseHeld

__all__ = ["NOT_HELD", "AgentMachine", "State", "Terms"]

NOT_HELD = "this node could not renew its lease: the others may go on without it"

GATHER_S = 3.0
"""How long a failed job waits for what the other nodes know of it."""

_LEAVING = (Ending.SIGNALLED, Ending.STOPPED)


class AgentMachine:
    """The machine of one agent."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._effects: list[Effect] = []
        self.state = State.INIT
        self.reason = ""
        """Why it is in this state: one sentence for a person."""
        # The round that it works in, and what is known of it.
        self.place: Place | None = None
        self._running: set[int] = set()
        self._own: list[Failure] = []
        self._told = 0  # how many of them the others have been told of
        self._peers: dict[int, tuple[Failure, ...]] = {}
        self._told_all: set[int] = set()  # the nodes that have said everything
        self._counting = False  # our own failure is counted, or will be
        # Stopping: what comes after it, and what is still awaited.
        self._after: Join | Outcome | None = None  # None: a verdict over our own failure
        self._group_alive = False
        self._verdict: str | None = None
        self._restart: bool | None = None
        self._gather_by = 0.0
        self._signals = 0
        self._forgiven: tuple[Failure, ...] = ()  # why a new round was asked for
        self._held: LeaseHeld | None = None
        self.lapsed = False
        """Whether the workers were stopped because the lease could not be renewed (AG-10)."""

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
        self._forget_failures()
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
            self._own.append(failure)
            self._tell_if_first()

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

    def counted(self, count: int, times: tuple[float, ...], wall: float, now: float) -> None:
        """Hear how many failures the job has had, with ours."""
        if self.state is not State.STOPPING:
            return
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
            self._after = self._closed_outcome(str(error), failed=False)
        else:
            self.broke(error)
        self._proceed(now)

    def peer_told(
        self, number: int, node: int, failures: tuple[Failure, ...], final: bool, now: float
    ) -> None:
        """Hear which workers of another node of a round have failed."""
        if number != self._round():
            return
        self._peers[node] = failures
        if final:
            self._told_all.add(node)
        if failures and self.state in (State.RUNNING, State.FINISHED):
            self._over(sentence(failures[0]), now, name_cause(failures[0]))
        elif self.state is State.STOPPING:
            self._tell_if_first()
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
                self._after = self._closed_outcome(reason, failed)
                self._stop_workers(Signals.SIGTERM, f"the run is closed: {reason}")
            case State.STOPPING if isinstance(self._after, Join):
                self._after = self._closed_outcome(reason, failed)
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
        if self.state is State.GATHERING:
            self._gather(now)
            return
        failures = self._all_failures()
        why = f"stopped by {number.name}{f', after {sentence(failures[0])}' if failures else ''}"
        outcome = Outcome(
            ending=Ending.SIGNALLED, reason=why, failures=failures, signal=int(number)
        )
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
        failures = self._all_failures()
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
            self._after = self._broken(error)
            self._stop_workers(Signals.SIGTERM, str(error))
        elif not isinstance(self._after, Outcome) and self._restart is not False:
            self._after = self._broken(error)

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self.state is State.GATHERING:
            self._gather(now)
        elif self._held is not None and self._is_at_work() and now >= self._held.stop_at:
            self._lapse(self._held, now)

    # What is wanted.

    def next_wake(self) -> float | None:
        """Return when `tick` is due even if nothing happens."""
        if self.state is State.GATHERING:
            return self._gather_by
        return self._held.stop_at if self._held is not None and self._is_at_work() else None

    def take_effects(self) -> list[Effect]:
        """Return what to do, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    # How it goes on.

    def _go(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason

    def _join(self, why: str, cause: str = "") -> None:
        self._go(State.JOINING, why or "waiting for a round")
        self._effects.append(Join(why, cause))

    def _failed(self, failure: Failure) -> None:
        """Count a failure, tell of it (AG-4), and stop the other workers; the account decides."""
        self._own.append(failure)
        self._counting = True
        self._after = None
        self._effects.append(CountFailure())
        self._publish()
        self._stop_workers(Signals.SIGTERM, sentence(failure))

    def _tell_if_first(self) -> None:
        """Tell at once of a failure before all that are known, if the round's is counted (AG-4)."""
        given_up = isinstance(self._after, Outcome) and self._after.ending is Ending.FAILED
        counted = self._counting or any(self._peers.values()) or given_up
        if counted and any(one is self._all_failures()[0] for one in self._own[self._told :]):
            self._publish()

    def _publish(self, *, final: bool = False) -> None:
        self._told = len(self._own)
        self._effects.append(Publish(tuple(self._own), final))

    def _finished(self) -> None:
        self._go(State.FINISHED, "all workers of this node are done: waiting for the others")
        self._effects.append(Meet(self._terms.exit_barrier_s))

    def _over(self, reason: str, now: float, cause: str = "") -> None:
        """Stop, and ask for the next round, since this one ends by no fault of ours (AG-2)."""
        self._after = Join(reason, cause)
        if self._group_alive:
            self._stop_workers(Signals.SIGTERM, reason)
        else:
            self._go(State.STOPPING, reason)
            self._proceed(now)

    def _is_at_work(self) -> bool:
        """Say whether workers run that end with the lease."""
        busy = self._group_alive and self.state in (State.RUNNING, State.STOPPING)
        return busy and not self.lapsed

    def _lapse(self, held: LeaseHeld, now: float) -> None:
        """Stop the workers in the time that is left, also if they are being stopped (AG-10)."""
        self.lapsed = True
        if self.state is State.RUNNING:
            self._after = Join(NOT_HELD)
            self._go(State.STOPPING, NOT_HELD)
        self._effects.append(Stop(Signals.SIGTERM, max(0.0, held.kill_at - now), NOT_HELD))

    def _stop_workers(self, number: Signals, why: str, grace_s: float | None = None) -> None:
        self._go(State.STOPPING, why)
        grace_s = self._terms.grace_s if grace_s is None else grace_s
        self._effects.append(Stop(number, grace_s, why))

    def _is_decided(self) -> bool:
        """Say whether this node ends when its workers have, whatever a signal says."""
        if isinstance(self._after, Outcome):
            return self._after.ending is not Ending.SIGNALLED
        return self._restart is False

    def _proceed(self, now: float) -> None:
        """Go on when the workers have ended, and the account has been heard if it decides."""
        if self.state is not State.STOPPING or self._group_alive:
            return
        after = self._after
        if isinstance(after, Outcome):
            if after.ending is Ending.FAILED:
                self._gather_all(after.reason, now)
            else:
                self._end(after)
        elif isinstance(after, Join):
            self._say_all()  # another node may be gathering
            self._join(after.why, after.cause)
        elif self._restart:
            why = f"{self._cause()}; {self._verdict}"
            self._forgiven = self._all_failures()  # whatever closes the run is not them
            self._forget_failures()
            self._join(why, name_cause(self._forgiven[0]))
        elif self._restart is False:
            self._gather_all(f"{self._cause()}; {self._verdict}", now)

    def _say_all(self) -> None:
        if self._others():
            self._publish(final=True)

    def _others(self) -> int:
        return self.place.nodes - 1 if self.place else 0

    def _gather_all(self, reason: str, now: float) -> None:
        """Wait for what the others know, so that the first cause is named on every node."""
        self._say_all()
        self._go(State.GATHERING, reason)
        self._gather_by = now + GATHER_S
        self._gather(now)

    def _gather(self, now: float) -> None:
        if self._signals or len(self._told_all) >= self._others() or now >= self._gather_by:
            self._finish_failed()

    def _overdrawn(self, place: Place) -> None:
        """End, since the job failed once more than is allowed, and no node closed the run."""
        allowed = self._terms.budget.max_restarts
        reason = f"the job failed {place.failures} times, {allowed} restarts are allowed"
        self._close_run(reason, failed=True)
        self.reason = reason
        self._finish_failed()

    # The end.

    def _close_run(self, reason: str, *, failed: bool) -> None:
        self._effects.append(Close(reason, failed))

    def _closed_outcome(self, reason: str, failed: bool) -> Outcome:
        return Outcome(ending=Ending.FAILED if failed else Ending.NOT_NEEDED, reason=reason)

    def _broken(self, error: HoldfastError) -> Outcome:
        return Outcome(ending=Ending.BROKEN, reason=str(error), error=error)

    def _break(self, error: HoldfastError) -> None:
        self._end(self._broken(error))

    def _finish(self, ending: Ending, reason: str) -> None:
        self._end(Outcome(ending=ending, reason=reason))

    def _finish_failed(self) -> None:
        """End with what is known of the job's failure: the reason at least."""
        self._end(Outcome(ending=Ending.FAILED, reason=self.reason, failures=self._all_failures()))

    def _end(self, outcome: Outcome) -> None:
        known = self._all_failures()
        if outcome.ending is Ending.BROKEN:  # with what is known by now (AG-9)
            outcome = replace(outcome, failures=known or self._forgiven)
        elif known and self.state is State.STOPPING and outcome.ending in _LEAVING:
            self._say_all()  # another node may be gathering, or will be
        self._go(State.ENDED, outcome.reason)
        self._effects.append(Finish(outcome))

    def _forget_failures(self) -> None:
        self._own, self._peers, self._told_all = [], {}, set()
        self._told, self._counting = 0, False

    def _all_failures(self) -> tuple[Failure, ...]:
        return first_cause([*self._own, *(f for told in self._peers.values() for f in told)])

    def _cause(self) -> str:
        failures = self._all_failures()
        return sentence(failures[0]) if failures else self.reason

    def _round(self) -> int:
        return self.place.round if self.place else 0

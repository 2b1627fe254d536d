"""How an agent goes on after something happened to it: its state, its wishes and its end.

The lower half of `machine.py`, which hears what happens; the guarantees are listed there.
"""

from __future__ import annotations

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
    Remember,
    Stop,
)
from holdfast.agent.known import KnownFailures
from holdfast.agent.outcome import (
    Ending,
    Outcome,
    broken,
    name_cause,
    sentence,
)
from holdfast.agent.rules import describe_failure
from holdfast.agent.terms import State, Terms
from holdfast.errors import HoldfastError
from holdfast.process.outcome.failure import Failure
from holdfast.rendezvous.effects import LeaseHeld

__all__ = ["GATHER_S", "NOT_HELD", "Course"]

NOT_HELD = "this node could not renew its lease: the others may go on without it"

GATHER_S = 3.0
"""How long a failed job waits for what the other nodes know of it."""

_LEAVING = (Ending.SIGNALLED, Ending.STOPPED)


class Course:
    """What one agent does, and is about to do."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._effects: list[Effect] = []
        self.state = State.INIT
        self.reason = ""
        """Why it is in this state: one sentence for a person."""
        # The round that it works in, and what is known of it.
        self.place: Place | None = None
        self._running: set[int] = set()
        self._failures = KnownFailures()
        # Stopping: what comes after it, and what is still awaited.
        self._after: Join | Outcome | None = None  # None: a verdict over our own failure
        self._group_alive = False
        self._verdict: str | None = None
        self._restart: bool | None = None
        self._count = 0  # the job's failures with ours
        self._before: tuple[str, ...] = ()  # descriptions of those before it
        self._hear_by: float | None = None  # the rules want to give up, unless others know more
        self._gather_by = 0.0
        self._next = Join("")  # in BACKOFF: what comes after it
        self.resume_at = 0.0
        """In BACKOFF: when it asks for the next round."""
        self._signals = 0
        self._forgiven: tuple[Failure, ...] = ()  # why a new round was asked for
        self._held: LeaseHeld | None = None
        self.lapsed = False
        """Whether the workers were stopped because the lease could not be renewed (AG-10)."""

    # What is wanted.

    def next_wake(self) -> float | None:
        """Return when `tick` is due even if nothing happens."""
        if self.state is State.GATHERING:
            return self._gather_by
        if self.state is State.BACKOFF:
            return self.resume_at
        if self._hear_by is not None:
            return self._hear_by
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

    def _join_again(self, join: Join, now: float) -> None:
        """Ask for the next round, after a failure not before the pause is over (AG-13)."""
        number = self.place.failures + 1 if self.place else 1
        pause_s = self._terms.backoff.pause_s(self._terms.run_id, number) if join.cause else 0.0
        self._next = join
        if pause_s > 0:
            self.resume_at = now + pause_s
            self._go(State.BACKOFF, f"{join.why} after a pause of {pause_s:.1f} s")
        else:
            self._ask()

    def _ask(self) -> None:
        self._join(self._next.why, self._next.cause)

    def _failed(self, failure: Failure) -> None:
        """Count a failure, tell of it (AG-4), and stop the other workers; the account decides."""
        self._failures.own.append(failure)
        self._failures.counting = True
        self._after = None
        self._effects.append(CountFailure(self._terms.rules.compared))
        self._publish()
        self._stop_workers(Signals.SIGTERM, sentence(failure))

    def _tell_if_first(self) -> None:
        """Tell at once of a failure before all that are known, if the round's is counted (AG-4)."""
        given_up = isinstance(self._after, Outcome) and self._after.ending is Ending.FAILED
        known = self._failures
        counted = known.counting or any(known.peers.values()) or given_up
        if counted and known.is_untold_first():
            self._publish()

    def _publish(self, *, final: bool = False) -> None:
        self._effects.append(Publish(self._failures.tell(), final))

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
            self._join_again(after, now)
        elif self._restart and self._is_forgiven(now):
            why = f"{self._cause()}; {self._verdict}"
            self._forgiven = self._failures.all()  # whatever closes the run is not them
            self._failures = KnownFailures()
            self._join_again(Join(why, name_cause(self._forgiven[0])), now)
        elif self._restart is False:
            self._gather_all(f"{self._cause()}; {self._verdict}", now)

    def _is_forgiven(self, now: float) -> bool:
        """Say whether the rules allow a restart; if they surely do not, give up (AG-12)."""
        rules, first = self._terms.rules, self._failures.own_first()
        if first is None:
            self._hear_by = None
            return True  # the node whose worker it was judges it
        ruling = rules.judge(first, self._before)
        if ruling.restart:
            self._hear_by = None
            if rules.compared:
                self._effects.append(Remember(self._count, describe_failure(first)))
            return True
        if self._hear_by is None:
            self._hear_by = now + GATHER_S
            self._say_all()
        done = self._failures.others_told_all(self._others())
        if done or self._signals or now >= self._hear_by:
            self._hear_by = None
            self._restart, self._verdict = False, ruling.reason
            self._failures.note_repeated(first, ruling.repeated)
            self._say_all()  # before the others can hear that the run is closed
            self._close_run(f"{self._cause()}; {ruling.reason}", failed=True)
        return False

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
        done = self._failures.others_told_all(self._others())
        if self._signals or done or now >= self._gather_by:
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

    def _break(self, error: HoldfastError) -> None:
        self._end(broken(error))

    def _finish(self, ending: Ending, reason: str) -> None:
        self._end(Outcome(ending=ending, reason=reason))

    def _finish_failed(self) -> None:
        """End with what is known of the job's failure: the reason at least."""
        known = self._failures.all()
        self._end(Outcome(ending=Ending.FAILED, reason=self.reason, failures=known))

    def _end(self, outcome: Outcome) -> None:
        known = self._failures.all()
        if outcome.ending is Ending.BROKEN:  # with what is known by now (AG-9)
            outcome = replace(outcome, failures=known or self._forgiven)
        elif known and self.state is State.STOPPING and outcome.ending in _LEAVING:
            self._say_all()  # another node may be gathering, or will be
        self._go(State.ENDED, outcome.reason)
        self._effects.append(Finish(outcome))

    def _cause(self) -> str:
        failures = self._failures.all()
        return sentence(failures[0]) if failures else self.reason

    def _round(self) -> int:
        return self.place.round if self.place else 0

"""Did the agents of a simulated job keep their word? What is judged beside the rounds.

The truth is what the played workers did, and the history of the run's keys in the store.

    AG-1  workers start on a node only when none of an earlier round is left there
    AG-10 and only when none of an earlier round runs anywhere, but on a node that is paused, or
          where no agent could keep them from it (`may_work_on`)
    S4    the run is closed as failed only if its account is overdrawn or workers could not be
          started, as succeeded only if all workers of a complete round are done
    S5    each round that ends uses up one event: a worker of it failed, a member went away or
          could not renew its lease, or a node wants to come in
    S6    a failure is counted before the others are told of it; no workers start in a round that
          had more failures before it than restarts are allowed, and a job that is given up had
          exactly one more
    P4    an outcome is true: failed with the first cause, where nothing kept it from being known (a
          signal ends the wait for what the other nodes know); succeeded when all are done, or were
          waited for as long as was agreed; broken and signalled for a reason
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.agent.effects import Place
from holdfast.agent.exchange import decode_report
from holdfast.agent.outcome import Ending, Outcome
from holdfast.errors import RendezvousClosed
from holdfast.ids import LeaseId, NodeId
from holdfast.rendezvous.model import RoundRecord, Status
from holdfast.store.ops import AnyOp, Change, CompareSet, LeaseKeep
from tests.sim.rendezvous.judge import Judge

__all__ = ["NOT_IN_TIME", "AgentJudge"]

NOT_IN_TIME = "not all workers were done in time"
"""What the exit barrier of a simulated node says when it has waited for long enough."""

CLOCKS_AGREE = 0.95
"""How long a second of a simulated node lasts at least."""

LATE_S = 4.0
"""By how much a leader may be late with what it sees."""


class AgentJudge(Judge):
    """Watches one job. `strict` says whether nothing disturbs the network since some time."""

    def __init__(self, *given: Any, max_restarts: int) -> None:
        super().__init__(*given)
        self.max_restarts = max_restarts
        self.signalled: set[NodeId] = set()
        self.start_failures = 0
        self.uncounted: set[int] = set()
        """Rounds whose failure need not be counted, or could not be."""
        self.outcomes: dict[NodeId, Outcome] = {}
        self.on_failure: Callable[[int, NodeId], None] = lambda number, node: None
        """Called when a worker of a round, on this node, has failed."""
        self.on_started: Callable[[NodeId, int], None] = lambda node, number: None
        """Called when a node starts the workers of a round."""
        self.on_counted: Callable[[], None] = lambda: None
        """Called when a failure has been counted."""
        self.causes: dict[int, list[tuple[float, int]]] = {}
        """For each round, when which rank failed of its own accord."""
        self.calm_since: float | None = None
        """Since when nothing disturbs the network any more."""
        self.causes_known = True
        """Whether clocks agree, and workers end before the agents' timeouts for each other."""
        self._alive: Counter[NodeId] = Counter()
        self._done: Counter[int] = Counter()
        self._worlds: dict[int, int] = {}
        self._departed: Counter[NodeId] = Counter()
        self._knocked: set[int] = set()
        self._gone_at = -LATE_S
        self._holders: dict[LeaseId, NodeId] = {}
        self._cut_at: dict[NodeId, float] = {}
        self._left_behind: set[NodeId] = set()

    @property
    def counted(self) -> frozenset[int]:
        """The rounds whose failure is in the account."""
        return frozenset(self._counted)

    # What workers do.

    def started(self, node: NodeId, place: Place, own: int, world: int) -> None:
        """Hear that an agent starts its workers."""
        self.counts["attempts"] += 1
        if self._alive[node]:
            self._fail(f"AG-1: {node} starts workers beside {self._alive[node]} others")
        failures = self.rounds[place.round].failures
        if failures > self.max_restarts:
            self._fail(f"S6: {node} starts workers after {failures} failures")
        self.on_started(node, place.round)
        self._alive[node] += own
        self._worlds[place.round] = world

    def lapsed(self, number: int) -> None:
        """Hear that a node asks anew since it could not renew its lease in this round."""
        self.counts["lapses"] += 1
        self._knocked.add(number)

    def workers_died(self, node: NodeId, number: int) -> None:
        """Hear that workers are no more."""
        self._alive[node] -= number

    def worker_failed(self, node: NodeId, number: int, rank: int, raised_at: float) -> None:
        """Hear that a worker has ended which failed at that moment, of its own accord."""
        self.counts["worker failures"] += 1
        self.causes.setdefault(number, []).append((raised_at, rank))
        self.on_failure(number, node)

    def worker_done(self, number: int) -> None:
        """Hear that a worker has ended well."""
        self._done[number] += 1

    def all_done(self, number: int) -> bool:
        """Say whether every worker of a round has ended well."""
        return number in self._worlds and self._done[number] == self._worlds[number]

    # What agents do.

    def closing(self, number: int, reason: str, failed: bool) -> None:
        """Hear that an agent that was in this round closes the run."""
        if failed and len(self._counted) <= self.max_restarts and not self.start_failures:
            self._fail(f"S4: closed after {len(self._counted)} failures: {reason}")
        if not failed and not self.all_done(number):
            self._fail(f"S4: closed, though workers of round {number} are not done: {reason}")

    def agent_ended(self, node: NodeId, number: int, outcome: Outcome) -> None:
        """Hear how an agent ended whose last round was this one."""
        self.counts[str(outcome.ending)] += 1
        self.outcomes[node] = outcome
        match outcome.ending:
            case Ending.SUCCEEDED:
                waited = outcome.reason.endswith(NOT_IN_TIME)
                if not waited and not any(map(self.all_done, self._worlds)):
                    self._fail(f"P4: {node} succeeded, but not all workers: {outcome.reason}")
            case Ending.FAILED:
                if len(self._counted) != self.max_restarts + 1 and not self.start_failures:
                    self._fail(f"S6: given up after {len(self._counted)} failures: {outcome}")
                self._check_cause(node, number, outcome)
            case Ending.SIGNALLED:
                if node not in self.signalled:
                    self._fail(f"P4: nobody signalled {node}")
            case Ending.NOT_NEEDED:
                if not any(map(self.all_done, self._worlds)):
                    self._fail(f"P4: {node} takes the job for done: {outcome.reason}")
            case Ending.BROKEN:
                if isinstance(outcome.error, RendezvousClosed):
                    self._fail(f"P4: {node} ended well or with the job: {outcome}")

    def _check_cause(self, node: NodeId, number: int, outcome: Outcome) -> None:
        """Check the first cause, if the last round was formed and ended in peace."""
        causes = sorted(self.causes.get(number, []))
        last = max((n for n, found in self.causes.items() if found), default=0)
        calm = self.calm_since is not None and causes and causes[0][0] > self.calm_since
        hurried = node in self.signalled
        if not calm or hurried or number != last or not self.causes_known or self.start_failures:
            return
        self.counts["causes judged"] += 1
        if not outcome.failures or outcome.failures[0].rank != causes[0][1]:
            named = [failure.rank for failure in outcome.failures]
            self._fail(f"P4: {node} names {named}, the order was {causes} in round {number}")

    def may_work_on(self, node: NodeId) -> bool:
        """Say whether a node may have workers of an earlier round, though the next one begins.

        The network may close a node's connection as a process does that dies, and keep the node
        from connecting again. Then the store ends the lease early (SV-7). The node learns it when
        it reaches the store, or stops its workers when its lease ends by its own count.

        A leader goes on without a member that lives after half of `join_s`, though the member may
        take longer to hear of the end and to stop: else all the nodes that wait would time out.
        """
        rules, now = self.rules, self._clock()
        if now < self._cut_at.get(node, -math.inf) + rules.lease_s + rules.stop_s:
            return True
        return node in self._left_behind and node in self.announced

    # What the store does.

    def curtailed(self, lease: LeaseId) -> None:
        if lease in self._holders:
            self._cut_at[self._holders[lease]] = self._clock()

    def performed(self, op: AnyOp) -> None:
        super().performed(op)
        match op:
            case CompareSet(key, _, _, lease) if lease and key.startswith(self.keys.nodes):
                self._holders[lease] = NodeId(key.removeprefix(self.keys.nodes))
            case LeaseKeep(lease) if lease in self._holders:
                self._cut_at.pop(self._holders[lease], None)

    def changed(self, change: Change) -> None:
        super().changed(change)
        head, _, tail = change.key.removeprefix(self.keys.board).partition("/failed/")
        if change.key.startswith(self.keys.board) and tail and change.value is not None:
            self._reported(int(head), change.value)

    def _reported(self, number: int, value: bytes) -> None:
        failures, final = decode_report(value, 0.0)
        record = self.record
        lasts = record is not None and (record.status, record.number) == (Status.COMPLETE, number)
        if failures and final:
            self.uncounted.add(number)  # seen while its workers were stopped for something else
        elif failures and lasts and number not in self._counted | self.uncounted:
            self._fail(f"S6: a failure of round {number} is told before it is counted")

    def _node_changed(self, node: NodeId, value: bytes | None) -> None:
        before = self.announced.get(node)
        super()._node_changed(node, value)
        now, record = self.announced.get(node), self.record
        if before is not None and now is None:
            self._departed[node] += 1
            self._gone_at = self._clock()
        if now is not None and record is not None and node not in self.members():
            self._knocked.add(record.number)

    def _completed(self, record: RoundRecord) -> None:
        super()._completed(record)
        members = {member.node for member in self.members_of(record)}
        hasty = self.rules.grace_s < self.rules.lease_s + self.rules.stop_s
        waited = self._clock() - self._forming_since >= self.rules.grace_s * CLOCKS_AGREE
        if hasty and waited:
            self._left_behind.update(self.announced)
        self._left_behind -= members
        just_gone = self._clock() < self._gone_at + LATE_S  # the leader may not have heard of it
        # A leader that was cut off for longer may count on a member that is gone: the round ends by
        # that, though an earlier round used the event up.
        if just_gone or members != self.announced.keys():
            self._knocked.add(record.number)

    def _ended(self, old: RoundRecord, new: RoundRecord) -> None:
        super()._ended(old, new)
        departed = [one.node for one in self.members_of(old) if self._departed[one.node]]
        if departed:
            self._departed[departed[0]] -= 1
        elif not self.causes.get(old.number) and old.number not in self._knocked:
            left = all(self._has_left(member.node, old) for member in self.members_of(old))
            if not left:
                self._fail(f"S5: nothing happened in round {old.number}: {new.reason}")

    def _failures_changed(self, old: Any, new: Any) -> None:
        super()._failures_changed(old, new)
        self.on_counted()
        if len(self._counted) > self.max_restarts + 1:
            self._fail(f"S6: {len(self._counted)} failures, {self.max_restarts} may be restarted")

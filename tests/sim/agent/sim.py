"""A simulated job: agents with workers on the nodes of a faulty cluster, over many seeds.

    python -m tests.sim.agent --seeds 1000        fresh seeds; the first is printed
    python -m tests.sim.agent --seed 123          one seed, with its whole trace

Each seed draws 2 to 6 nodes of 1 to 3 workers, and all that goes wrong with the network and the
nodes as in `cluster.py`; beside that workers fail, alone and together, are slow to stop or cannot
be killed, or cannot be started; agents are signalled, killed, and come late. `judge.py` checks
at every step what agents promise. For some time after the network has healed workers go on to
fail. Then it stops, and within a bound

    L4  every agent has ended, or all are at work in one round, but for those without a place; if
        workers can be done, all have ended; every agent that lives to its end says how it ended
    E9  and while the network was whole, no node worked, or waited for the others to be done, for
        long after a worker had failed

L4 asks nothing of a run whose agents were all killed: none of them is left to tell anything. E9
gives the other nodes more time when the agent of the failed worker had been signalled before: this
agent leaves when its workers have ended, at the latest when their grace is over, and the round ends
then. Until then its other workers may need those of the other nodes, to save what they have.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

from holdfast.agent.machine import GATHER_S, State, Terms
from holdfast.agent.policy import RestartBudget
from holdfast.agent.rules import RestartBackoff
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous import roll
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.model import Keys, Status
from holdfast.testing.faultplan import (
    Crash,
    FaultPlan,
    Incident,
    draw_partition,
    draw_pause,
    draw_rates,
)
from holdfast.testing.network import Host, Network, Simulation
from tests.sim.agent.judge import AgentJudge
from tests.sim.agent.nodes import STORE_WITHIN_S, AgentProgram, AgentUser
from tests.sim.agent.workers import KILL_WAIT_S, AgentBehaviour
from tests.sim.rendezvous.nodes import ClusterServer, NodePlan
from tests.sim.rendezvous.sim import NOTICE_S, PAGE_MEMBERS
from tests.sim.seeds import Report, SeededRuns
from tests.sim.store.actors import SERVER, Journal, is_loose

__all__ = ["AgentCluster", "AgentPlan", "draw_plan", "main", "run_seed", "run_seeds"]

_MODULE = "tests.sim.agent"
_LEAST = {"rounds": 2, "attempts": 4}
_KEYS = Keys(RunId("sim"))
_SIZES = (2, 2, 2, 3, 3, 4, 5, 6)

TOLD_WITHIN_S = 1.0
"""How long a worker may go on, in a whole network, after another one has failed."""


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """All that a seed decides."""

    faults: FaultPlan
    nodes: tuple[NodePlan, ...]
    rules: Rules
    behaviour: AgentBehaviour
    signals: tuple[tuple[float, str], ...]
    targeted_crash: int | None
    """The agent that counts the failure of this number dies at that moment."""

    def __str__(self) -> str:
        lines = [f"{len(self.nodes)} nodes, {self.rules}", str(self.behaviour)]
        lines += [f"the agent that counts failure {self.targeted_crash} dies"] * (
            self.targeted_crash is not None
        )
        lines += [f"at {at:.3f} s a signal to {name}" for at, name in self.signals]
        return "\n".join([*lines, *map(str, self.nodes), str(self.faults)])

    @property
    def terms(self) -> Terms:
        """The agents' terms."""
        assert self.behaviour.terms is not None
        return self.behaviour.terms

    def settle_s(self) -> float:
        """Return within which time after the last failure everything is settled (L4)."""
        terms, work = self.terms, self.behaviour.work_s or (0.0, 0.0)
        stop_s = terms.grace_s + KILL_WAIT_S + GATHER_S + 2 * STORE_WITHIN_S + terms.backoff.most_s
        return NOTICE_S + 2.2 * self.rules.join_s + stop_s + 2 * work[1] + terms.exit_barrier_s


def draw_plan(seed: int) -> AgentPlan:
    """Decide from the seed all that will go wrong."""
    rng = random.Random(f"agents {seed}")
    names = [f"n{number}" for number in range(rng.choice(_SIZES))]
    faulty_s = rng.uniform(8.0, 20.0)
    least = rng.choice((1, rng.randint(1, len(names))))
    rules = Rules(
        min_nodes=least,
        max_nodes=rng.choice((len(names), rng.randint(least, len(names)))),
        join_s=rng.uniform(10.0, 20.0),
        last_call_s=rng.choice((0.0, 0.3, 1.5)),
        keep_alive_s=1.0,
        lease_s=rng.choice((3.0, 15.0)),
        linger_s=0.5,
    )
    low = rng.uniform(0.0002, 0.002)
    latency_s = (low, low * rng.uniform(1.5, 30.0))
    quiet = FaultPlan(latency_s=latency_s, delay_s=0.0, calm_at=0.0)
    faults = FaultPlan(
        latency_s=latency_s,
        delay_s=rng.choice((0.05, 0.5, 3.0)),
        rates=draw_rates(rng),
        incidents=_draw_incidents(rng, names, faulty_s),
        calm_at=faulty_s,
    )
    until = faulty_s + rng.uniform(20.0, 40.0)
    plan = AgentPlan(
        quiet if rng.random() < 0.4 else faults,
        tuple(_draw_node(rng, name, faulty_s) for name in names),
        rules,
        _draw_behaviour(rng, until, len(names)),
        tuple(
            (rng.uniform(0.0, until), rng.choice(names)) for _ in range(rng.choice((0, 0, 1, 2)))
        ),
        rng.choice((None, 1, 1, 2)),
    )
    stop_s = plan.terms.grace_s + KILL_WAIT_S
    return replace(plan, rules=replace(rules, stop_s=stop_s))


def _draw_backoff(until: float) -> RestartBackoff:
    """Let some jobs pause before they restart; drawn apart, so that all else stays as it was."""
    rng = random.Random(f"backoff {until}")
    return RestartBackoff(rng.choice((0.0, 0.0, 0.0, 0.3, 2.0)), 4.0)


def _draw_behaviour(rng: random.Random, until: float, nodes: int) -> AgentBehaviour:
    least_s = rng.uniform(0.5, 5.0)
    drift_s = rng.choice((0.5, 4.0, 12.0))
    return AgentBehaviour(
        until=until,
        stop_s=0.0,
        failures=rng.choice((0.0, 0.5, 1.0, 1.0)),
        terms=Terms(
            budget=RestartBudget(rng.choice((0, 0, 1, 1, 2, 10))),
            grace_s=rng.choice((1.0, 1.0, 4.0)),
            exit_barrier_s=rng.choice((2.0, 30.0)),
            backoff=_draw_backoff(until),
        ),
        workers=tuple(rng.randint(1, 3) for _ in range(nodes)),
        work_s=None if rng.random() < 0.4 else (least_s, least_s + drift_s),
        collateral=rng.choice((0.0, 0.5, 1.0)),
        slow=rng.choice((0.0, 0.3)),
        stuck=rng.choice((0.0, 0.0, 0.0, 0.1)),
        cannot_start=rng.choice((0.0, 0.0, 0.0, 0.0, 0.05)),
        clocks_differ=rng.random() < 0.2,
    )


def _draw_node(rng: random.Random, name: str, faulty_s: float) -> NodePlan:
    return NodePlan(
        name,
        comes_at=rng.choice((0.0, 0.0, rng.random(), rng.uniform(0.0, 1.5) * faulty_s)),
        leaves_at=None,
        clock_offset_s=rng.uniform(0.0, 1e6),
        clock_rate=rng.choice((1.0, rng.uniform(0.95, 1.05))),
    )


def _draw_incidents(
    rng: random.Random, names: Sequence[str], faulty_s: float
) -> tuple[Incident, ...]:
    pairs = [(name, SERVER) for name in names]
    incidents: list[Incident] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        incidents.append(draw_partition(rng, pairs, faulty_s, rng.choice((4.0, 12.0))))
    for _ in range(rng.choice((0, 0, 1, 2))):
        incidents.append(draw_pause(rng, names, faulty_s, 9.0))
    for _ in range(rng.choice((0, 0, 1, 2))):
        at = rng.uniform(0.0, faulty_s)
        back = rng.choice((None, min(faulty_s, at + rng.uniform(0.1, 5.0))))
        incidents.append(Crash(at, rng.choice(names), back, rng.random() < 0.5))
    return tuple(incidents)


class AgentCluster:
    """A run of one plan."""

    def __init__(self, seed: int, plan: AgentPlan, *, traced: bool = False) -> None:
        self.plan = plan
        self.sim = Simulation(seed, traced=traced)
        self.network = Network(self.sim, plan.faults, loose=is_loose)
        self.journal = Journal(self.sim)
        self.judge = AgentJudge(
            _KEYS,
            plan.rules,
            self.journal.fail,
            lambda: self.sim.now,
            max_restarts=plan.terms.budget.max_restarts,
        )
        self.judge.on_failure = self._check_told
        self.judge.on_counted = self._targeted_crash
        self.judge.on_started = self._check_alone
        prompt = plan.terms.grace_s < GATHER_S
        self.judge.causes_known = prompt and not plan.behaviour.clocks_differ
        self.network.add(
            SERVER, lambda host: ClusterServer(host, self.journal, self.sim.rng, self.judge)
        )
        for node in plan.nodes:
            self.network.add(node.name, partial(self._make, node))
        self.network.start()
        for at, name in plan.signals:
            self.sim.call_at(at, self._signal, name)

    def _make(self, node: NodePlan, host: Host) -> AgentProgram:
        return AgentProgram(host, self.journal, self.sim.rng, self.judge, node, self.plan.behaviour)

    def users(self) -> list[AgentUser]:
        """Return the agents that live and have not ended."""
        return [one for one in self._living() if one.ended is None]

    def _living(self) -> list[AgentUser]:
        """Return the agents that were not killed."""
        hosts = [self.network.hosts[node.name] for node in self.plan.nodes]
        programs = [host.program for host in hosts if host.alive]
        return [one.agent for one in programs if isinstance(one, AgentProgram)]

    def _signal(self, name: str) -> None:
        for user in self.users():
            if user.host.name == name:
                user.signal()

    def _targeted_crash(self) -> None:
        """Let the node that counts a failure die before it can act on the count."""
        if (
            len(self.judge.counted) == self.plan.targeted_crash
            and self.sim.now < self.plan.faults.calm_at
        ):
            for user in self.users():
                if user.counting:
                    self.judge.counts["targeted_crashes"] += 1
                    self.network.schedule(Crash(self.sim.now, user.host.name))

    def _check_alone(self, node: NodeId, number: int) -> None:
        """Look whether workers of an earlier round run elsewhere (AG-10)."""
        for user in self.users():
            place, workers = user.machine.place, user.workers
            runs = workers is not None and workers.alive - workers.stuck and not user.host.paused
            earlier = place is not None and place.round < number
            if runs and earlier and not self.judge.may_work_on(user.id):
                self.journal.fail(f"AG-10: {node} starts round {number} beside {user} in {place}")

    def _check_told(self, number: int, node: NodeId) -> None:
        """Look, some time after a failure in peace, whether workers of its round go on (E9)."""
        if self.judge.calm_since is not None and self.sim.now > self.judge.calm_since:
            leaving = node in self.judge.signalled
            stop_s = self.plan.terms.grace_s + KILL_WAIT_S if leaving else 0.0
            self.sim.call_later(stop_s + TOLD_WITHIN_S, self._still_running, number)

    def _still_running(self, number: int) -> None:
        for user in self.users():
            place = user.machine.place
            goes_on = user.machine.state in (State.RUNNING, State.FINISHED)
            if goes_on and place is not None and place.round == number and user.program.sound:
                self.journal.fail(f"E9: a worker of round {number} has failed, {user} goes on")

    # The run.

    def run(self) -> None:
        """Let everything go wrong, heal, and end."""
        with patch.object(roll, "PAGE_MEMBERS", PAGE_MEMBERS):
            self._run()

    def _run(self) -> None:
        plan = self.plan
        if plan.faults.calm_at > 0.0:
            self.sim.run(plan.faults.calm_at + plan.faults.delay_s + NOTICE_S)
        self.judge.calm_since = self.sim.now
        self.sim.run(max(self.sim.now, plan.behaviour.until))
        if self._await(plan.settle_s(), self._settled):
            for user in self.users():
                user.signal()
            stop_s = plan.terms.grace_s + KILL_WAIT_S + STORE_WITHIN_S
            self._await(stop_s, lambda: not self.users())
        for user in self._living():
            if user.ended is not None and user.outcome is None:
                self.journal.fail(f"L4: {user} does not say how it ended")

    def _settled(self) -> bool:
        """Say whether all have ended, or work in one round for ever."""
        users, record = self.users(), self.judge.record
        if not users or self.plan.behaviour.work_s is not None:
            return not users
        running = [one for one in users if one.machine.state is State.RUNNING]
        rounds = {one.machine.place.round for one in running if one.machine.place}
        complete = record is not None and record.status is Status.COMPLETE
        here = complete and rounds == {record.number if record else 0}
        return here and self.judge.all_in([one.id for one in users])

    def _await(self, within: float, done: Callable[[], bool]) -> bool:
        until = self.sim.now + within
        while not done():
            if self.sim.now >= until:
                still = "; ".join(map(str, self.users()))
                self.journal.fail(f"L4: not within {within:.1f} s: {self.judge.record}: {still}")
                return False
            self.sim.run(min(until, self.sim.now + 0.5))
        return True


def run_seed(seed: int, *, traced: bool = False) -> Report:
    """Run one seed, and judge it."""
    plan = draw_plan(seed)
    cluster = AgentCluster(seed, plan, traced=traced)
    try:
        cluster.run()
    except Exception:
        # Whatever a machine raises is found by this seed, and must be shown with it.
        cluster.journal.fail(traceback.format_exc())
    failures, trace = cluster.journal.failures, cluster.sim.trace
    return Report(
        _MODULE, seed, plan, failures, trace, cluster.network.faults, cluster.judge.counts
    )


_RUNS = SeededRuns("simulated jobs", _MODULE, run_seed, _LEAST)
run_seeds, main = _RUNS.run_seeds, _RUNS.main

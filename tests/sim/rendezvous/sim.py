"""A simulated cluster: the nodes of a run and their store in a faulty network, over many seeds.

    python -m tests.sim.rendezvous --seeds 1000        fresh seeds; the first is printed
    python -m tests.sim.rendezvous --seed 123          one seed, with its whole trace

Each seed draws 2 to 16 nodes, their rules, their clocks, and all that goes wrong: messages are
lost, late, doubled and out of order, links are cut in one direction or both, processes stop for
longer than a lease, die, come back as new nodes, come late, finish, leave, and report failures;
leaders are struck at the very moment of a publication, or between the pages of a roll. `judge.py`
checks S1 to S8 at every step. Then the network heals, and the rest must come within a bound:

    L1  with enough nodes alive, all of them are in one round, but for those without a place and
        those that come when others have finished; a node that is not alive in it finished and left
    L2  with too few, every node ends by the join timeout, with the reason
    L3  every node that leaves has left; a run that is closed ends for all
    E2  when the store's host is lost, every node ends with the reason
    E3  the store's host, which leaves when no other node is there, ends the run of no other node

A run of many seeds counts only if it was hard enough: see `seeds.Tally.too_easy`.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from unittest.mock import patch

from holdfast.ids import NodeId, RunId
from holdfast.rendezvous import roll
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.model import Keys, Status
from holdfast.store.session import SILENCE_S
from holdfast.testing.faultplan import (
    Crash,
    FaultPlan,
    Incident,
    Pause,
    draw_partition,
    draw_pause,
    draw_rates,
)
from holdfast.testing.network import Host, Network, Simulation
from tests.sim.rendezvous.judge import Judge
from tests.sim.rendezvous.nodes import (
    OP_TIMEOUT_S,
    RECONNECT_WITHIN_S,
    Agent,
    Behaviour,
    ClusterServer,
    NodePlan,
    NodeProgram,
)
from tests.sim.seeds import Report, SeededRuns
from tests.sim.store.actors import SERVER, Journal, is_loose

__all__ = [
    "Cluster",
    "ClusterPlan",
    "Ending",
    "TargetedCrash",
    "count_operations",
    "draw_plan",
    "main",
    "run_seed",
    "run_seeds",
]

_MODULE = "tests.sim.rendezvous"
_LEAST = {"rounds": 2}
_KEYS = Keys(RunId("sim"))
_SIZES = (2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 9, 16)  # most bugs need few nodes

NOTICE_S = 2 * SILENCE_S + 4.0
"""How long a client takes to notice that its link is dead, and to have another one."""
PAGE_MEMBERS = 2
"""How many members a page of a roll has: few, so that most rolls have several pages."""
LEAVE_S = 4.0
"""How long leaving takes at most, when nothing goes wrong."""


class Ending(StrEnum):
    """How a run ends, after it has healed."""

    CLOSE = "one node closes it; the store's host leaves last"
    LEAVE = "all leave"
    STARVE = "all but too few nodes die"
    STORE_LOST = "the store dies"


@dataclass(frozen=True, slots=True)
class TargetedCrash:
    """What strikes the leader at the nth change of the leader or the round, or page of a roll."""

    nth: int
    seconds: float
    dies: bool
    """Whether it dies and comes back after that time; otherwise it stops for so long."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All that a seed decides."""

    faults: FaultPlan
    nodes: tuple[NodePlan, ...]
    rules: Rules
    behaviour: Behaviour
    targeted_crashes: tuple[TargetedCrash, ...]
    ending: Ending

    def __str__(self) -> str:
        lines = [f"{len(self.nodes)} nodes, {self.rules}", f"{self.behaviour}, then {self.ending}"]
        lines += [str(part) for part in (*self.nodes, *self.targeted_crashes, self.faults)]
        return "\n".join(lines)

    def form_s(self) -> float:
        """Return within which time after healing all nodes are in one round (L1).

        Once a round is formed, one more may be needed for those that came back late.
        """
        once = self.rules.last_call_s + self.behaviour.stop_s + 2.0
        return NOTICE_S + self.rules.lease_s + 2 * once

    def starve_s(self) -> float:
        """Return within which time too few nodes give up (L2); clocks may be slow."""
        return self.form_s() + self.rules.join_s * 1.1

    def lost_s(self) -> float:
        """Return within which time every node knows that the store is lost (E2)."""
        waits = RECONNECT_WITHIN_S + 2 * OP_TIMEOUT_S
        return NOTICE_S + waits + self.rules.keep_alive_s + 2 * self.rules.lease_s


def draw_plan(seed: int) -> ClusterPlan:
    """Decide from the seed all that will go wrong."""
    rng = random.Random(f"cluster {seed}")
    names = [f"n{number}" for number in range(rng.choice(_SIZES))]
    work_s = rng.uniform(12.0, 25.0)
    least = rng.randint(1, len(names))
    rules = Rules(
        min_nodes=least,
        max_nodes=rng.randint(least, len(names) + 1),
        join_s=rng.uniform(8.0, 20.0),
        last_call_s=rng.choice((0.0, 0.3, 1.5)),
        keep_alive_s=1.0,
        lease_s=3.0,
        linger_s=0.5,
    )
    low = rng.uniform(0.0002, 0.002)
    faults = FaultPlan(
        latency_s=(low, low * rng.uniform(1.5, 30.0)),
        delay_s=rng.choice((0.05, 0.5, 3.0)),
        rates=draw_rates(rng),
        incidents=_draw_incidents(rng, names, work_s),
        calm_at=work_s,
    )
    ending = rng.choice((Ending.CLOSE, Ending.CLOSE, Ending.LEAVE, *Ending))
    if ending is Ending.STARVE and least == 1:
        ending = Ending.CLOSE
    return ClusterPlan(
        faults,
        tuple(_draw_node(rng, name, work_s) for name in names),
        rules,
        Behaviour(
            work_s,
            rng.choice((0.05, 0.5, 1.0)),
            rng.choice((0.0, 0.2, 0.6)),
            random.Random(f"finishing {seed}").choice((0.0, 0.0, 0.0, 0.2, 0.5)),
        ),
        tuple(
            TargetedCrash(rng.randint(1, 16), rng.uniform(0.2, 6.0), rng.random() < 0.5)
            for _ in range(rng.choice((0, 0, 1, 2)))
        ),
        ending,
    )


def _draw_node(rng: random.Random, name: str, work_s: float) -> NodePlan:
    return NodePlan(
        name,
        comes_at=rng.choice((0.0, 0.0, rng.random(), rng.uniform(0.0, 0.8) * work_s)),
        leaves_at=rng.uniform(0.2, 1.0) * work_s if rng.random() < 0.1 else None,
        clock_offset_s=rng.uniform(0.0, 1e6),
        clock_rate=rng.choice((1.0, rng.uniform(0.95, 1.05))),
    )


def _draw_incidents(
    rng: random.Random, names: Sequence[str], work_s: float
) -> tuple[Incident, ...]:
    pairs = [(name, SERVER) for name in names]
    incidents: list[Incident] = []
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        incidents.append(draw_partition(rng, pairs, work_s, rng.choice((4.0, 12.0))))
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        incidents.append(draw_pause(rng, names, work_s, 9.0))
    if rng.random() < 0.2:
        incidents.append(draw_pause(rng, [SERVER], work_s, 4.0))
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        at = rng.uniform(0.0, work_s)
        back = rng.choice((None, min(work_s, at + rng.uniform(0.1, 5.0))))
        incidents.append(Crash(at, rng.choice(names), back, rng.random() < 0.5))
    return tuple(incidents)


class Cluster:
    """A run of one plan."""

    def __init__(self, seed: int, plan: ClusterPlan, *, traced: bool = False) -> None:
        self.plan = plan
        self.sim = Simulation(seed, traced=traced)
        self.network = Network(self.sim, plan.faults, loose=is_loose)
        self.journal = Journal(self.sim)
        self.judge = Judge(_KEYS, plan.rules, self.journal.fail, lambda: self.sim.now)
        self._rng = random.Random(f"ending {seed}")
        self._fate = random.Random(f"finished {seed}")
        self._changes = 0
        self.judge.on_control = self._targeted_crash
        self.judge.on_finish = self._strike
        self.network.add(
            SERVER, lambda host: ClusterServer(host, self.journal, self.sim.rng, self.judge)
        )
        for node in plan.nodes:
            self.network.add(node.name, partial(self._make, node))
        self.network.start()

    def _make(self, node: NodePlan, host: Host) -> NodeProgram:
        return NodeProgram(host, self.journal, self.sim.rng, self.judge, node, self.plan.behaviour)

    def programs(self) -> list[NodeProgram]:
        """Return the nodes that take part now."""
        found = [self.network.hosts[node.name] for node in self.plan.nodes]
        programs = [host.program for host in found if host.alive]
        return [one for one in programs if isinstance(one, NodeProgram) and one.agent.ended is None]

    def agents(self) -> list[Agent]:
        """Return the agents of the nodes that take part now."""
        return [program.agent for program in self.programs()]

    def _targeted_crash(self) -> None:
        self._changes += 1
        now, end = self.sim.now, self.plan.behaviour.until
        hosts = [one.host.name for one in self.programs() if one.id == self.judge.leader]
        for targeted_crash in self.plan.targeted_crashes if hosts and now < end else ():
            if targeted_crash.nth == self._changes:
                until = min(end, now + targeted_crash.seconds)
                dies = Crash(now, hosts[0], until, silent=targeted_crash.nth % 2 == 0)
                self.judge.counts["targeted_crashes"] += 1
                self.network.schedule(dies if targeted_crash.dies else Pause(now, until, hosts[0]))

    def _strike(self, node: NodeId) -> None:
        """Let some nodes die that have finished, before they leave or not."""
        at = self.sim.now + self._fate.uniform(0.0, 4.0)
        back = self._fate.choice((None, at + self._fate.uniform(0.1, 5.0)))
        if self._fate.random() < 0.3 and at < self.plan.behaviour.until:
            (host,) = [one.host.name for one in self.programs() if one.id == node]
            back = None if back is None else min(self.plan.behaviour.until, back)
            self.network.schedule(Crash(at, host, back, silent=self._fate.random() < 0.5))

    # The run.

    def run(self) -> None:
        """Let everything go wrong, heal, and end."""
        with patch.object(roll, "PAGE_MEMBERS", PAGE_MEMBERS):
            self._run()

    def _run(self) -> None:
        self.sim.run(self.plan.behaviour.until + self.plan.faults.delay_s)  # frames may be late
        leaving = [agent for agent in self.agents() if agent.leaving]
        self._await(LEAVE_S + NOTICE_S, lambda: all(one.ended for one in leaving), "L3")
        if self._await(self.plan.form_s(), lambda: self._too_few() or self._all_in(), "L1"):
            if self._too_few():
                self._starve("lost")  # whose link is dead since before it healed
            else:
                self._end()

    def _too_few(self) -> bool:
        nodes = [program.id for program in self.programs()]
        return len(nodes) < self.plan.rules.min_nodes and not self.judge.stands(nodes)

    def _all_in(self) -> bool:
        programs = self.programs()
        sound = all(program.sound for program in programs)
        return sound and self.judge.all_in([program.id for program in programs])

    def _await(self, within: float, done: Callable[[], bool], promise: str) -> bool:
        """Run until it is done; blame the promise if that takes too long."""
        until = self.sim.now + within
        while not done():
            if self.sim.now >= until:
                still = "; ".join(str(agent) for agent in self.agents())
                self.journal.fail(
                    f"{promise}: not within {within:.1f} s: {self.judge.record}: {still}"
                )
                return False
            self.sim.run(min(until, self.sim.now + 0.25))
        return True

    def _end(self) -> None:
        agents, rng = self.agents(), self._rng
        match self.plan.ending:
            case Ending.CLOSE:
                agents[0].hosts_until = self._shut_store
                rng.choice(agents).close("the work is done")
                self._await_ends(agents, LEAVE_S + self.plan.behaviour.stop_s, ("left",), "L3")
                if self.judge.record is None or self.judge.record.status is not Status.CLOSED:
                    self.journal.fail(f"the run is not closed: {self.judge.record}")
            case Ending.LEAVE:
                for agent in agents:
                    self.sim.call_later(rng.uniform(0.0, 2.0), agent.leave)
                self._await_ends(agents, 2.0 + LEAVE_S, ("left",), "L3")
            case Ending.STARVE:
                # Members first: where some have finished and left, the others need not be enough.
                inside = self.judge.members()
                programs = sorted(self.programs(), key=lambda one: one.id in inside)
                for program in programs[min(self.plan.rules.min_nodes, len(programs)) - 1 :]:
                    self._crash(program.host.name, silent=rng.random() < 0.5)
                self.sim.run(self.sim.now)
                self._starve()
            case Ending.STORE_LOST:
                self._crash(SERVER, silent=rng.random() < 0.5)
                self._await_ends(agents, self.plan.lost_s(), ("lost",), "E2")

    def _shut_store(self) -> None:
        server = self.network.hosts[SERVER].program
        assert isinstance(server, ClusterServer)
        server.shut()
        self._crash(SERVER, silent=False)

    def _crash(self, host: str, *, silent: bool) -> None:
        self.network.schedule(Crash(self.sim.now, host, None, silent))

    def _starve(self, *also: str) -> None:
        agents = self.agents()
        for agent in agents:
            agent.patient = False
        self._await_ends(agents, self.plan.starve_s(), ("left", *also), "L2")
        for agent in agents:
            if agent.ended == "left" and "no round within" not in agent.last_reason:
                self.journal.fail(f"L2: no reason is given: {agent}")

    def _await_ends(
        self, agents: Sequence[Agent], within: float, how: tuple[str, ...], promise: str
    ) -> None:
        self._await(within, lambda: all(one.ended for one in agents), promise)
        wrong = [str(one) for one in agents if one.ended not in how]
        if wrong:
            self.journal.fail(f"{promise}: should have {how[0]}: {wrong}")


def count_operations(nodes: int) -> tuple[int, list[int]]:
    """Let so many nodes meet, in calm; return the leader's operations, and each other node's."""
    rules = Rules(min_nodes=nodes, max_nodes=nodes, keep_alive_s=20.0, lease_s=60.0)
    # They come over one second, and meet long before the first lease is renewed.
    plans = tuple(NodePlan(f"n{one}", one / nodes, None, 0.0, 1.0) for one in range(nodes))
    calm = Behaviour(until=0.0, stop_s=0.0, failures=0.0)
    cluster = Cluster(nodes, ClusterPlan(FaultPlan(), plans, rules, calm, (), Ending.LEAVE))
    cluster.sim.run(4.0)
    programs = cluster.programs()
    assert cluster.judge.all_in([program.id for program in programs])
    assert not cluster.journal.failures
    (leader,) = [program.ops for program in programs if program.node.leading]
    return leader, [program.ops for program in programs if not program.node.leading]


def run_seed(seed: int, *, traced: bool = False) -> Report:
    """Run one seed, and judge it."""
    plan = draw_plan(seed)
    cluster = Cluster(seed, plan, traced=traced)
    try:
        cluster.run()
    except Exception:
        # Whatever a machine raises is found by this seed, and must be shown with it.
        cluster.journal.fail(traceback.format_exc())
    failures, trace = cluster.journal.failures, cluster.sim.trace
    return Report(
        _MODULE, seed, plan, failures, trace, cluster.network.faults, cluster.judge.counts
    )


_RUNS = SeededRuns("cluster simulation", _MODULE, run_seed, _LEAST)
run_seeds, main = _RUNS.run_seeds, _RUNS.main

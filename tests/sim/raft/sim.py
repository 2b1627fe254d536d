"""Simulated clusters of Raft members, over many seeds.

    python -m tests.sim.raft --seeds 1000        fresh seeds; the first is printed
    python -m tests.sim.raft --seed 123          one seed, with its whole trace

Each seed draws 1 to 5 founders and all that goes wrong: messages are lost, late, doubled and out of
order, connections break, pairs of members are cut off from each other, members stop for a while and
die; their clocks run at different rates. A member that comes back is a new one: it has another
number and no log, and some leader adds it as a learner, and makes it a voter later. Members
propose, read, hand leadership over, drop what they applied, and stand for election without need;
leaders remove and add members for no reason. The machine is the product's
(`store/raft/machine.py`); `judge.py` says what is checked at every step (R1 to R8).

Then the network heals, and within a bound

    L1  one member leads, and all members of the cluster apply what it proposes then

unless more than half of the voters are dead. A run of many seeds counts only if it was hard enough:
see `seeds.Tally.too_easy`.
"""

from __future__ import annotations

import random
import traceback
from dataclasses import dataclass

from holdfast.errors import UsageError
from holdfast.store.raft.effects import Became, RaftEffect, Role
from holdfast.store.raft.messages import (
    AppendReply,
    ChangeKind,
    Configuration,
    InstallSnapshot,
    MemberChange,
    Message,
)
from holdfast.testing.faultplan import Crash, Fault, FaultPlan, draw_faults
from holdfast.testing.network import Simulation
from tests.sim.lives import Lives
from tests.sim.raft.judge import Judge
from tests.sim.raft.member import Machine, Member, OurRaft, number_of
from tests.sim.seeds import Report, SeededRuns

__all__ = ["RaftPlan", "RaftSim", "draw_plan", "main", "run_seed", "run_seeds"]

_MODULE = "tests.sim.raft"
_LEAST = {"entries": 5, "leaders": 1, "reads": 1}

TICK_S = 0.1
HEAL_S = 8.0
"""How long members have to agree on a leader, once the network has healed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """At `at` the members that lead are cut off from all others, until `until`.

    If `one_way`, nothing passes from them, but to them.
    """

    at: float
    until: float
    one_way: bool


@dataclass(frozen=True, slots=True)
class RaftPlan:
    """All that a seed decides."""

    faults: FaultPlan
    founders: Configuration
    members: int
    """How many there are in the beginning; those that are no founders are to be added."""
    voters: int
    """How many voters a leader wants."""
    election_ticks: int
    heartbeat_ticks: int
    whims: float
    """How likely a leader changes the members for no reason."""
    cuts: tuple[Cut, ...]
    coups: float
    """How likely a member is cut off soon after it was elected."""
    skew: float
    """By how much the clocks of members run too slowly or too fast."""

    def __str__(self) -> str:
        return (
            f"{self.members} members, founded by {self.founders}, {self.voters} voters "
            f"wanted, an election after {self.election_ticks} ticks, heartbeats every "
            f"{self.heartbeat_ticks}, changes without need: {self.whims:.2f}, coups: "
            f"{self.coups:.2f}, clocks off by {self.skew:.2f}\n"
            + "".join(f"{cut}\n" for cut in self.cuts)
            + str(self.faults)
        )


def draw_plan(seed: int) -> RaftPlan:
    """Decide from the seed all that will go wrong."""
    rng = random.Random(f"raft {seed}")
    members = rng.choice((2, 3, 3, 3, 4, 5, 5))
    names = [f"w{number}" for number in range(members)]
    work_s = rng.uniform(2.0, 8.0)
    founding = range(1, 1 + rng.choice((members, members, rng.randint(1, members))))
    learning = min(rng.choice((0, 0, 1, 2)), len(founding) - 1)
    voting = len(founding) - learning
    founders = Configuration(tuple(founding[:voting]), tuple(founding[voting:]))
    cuts = []
    for _ in range(rng.choice((0, 2, 4, 8))):
        at = rng.uniform(0.5, work_s)
        until = min(at + rng.uniform(0.0, 2.0), work_s)
        cuts.append(Cut(at, until, rng.random() < 0.3))
    return RaftPlan(
        draw_faults(rng, names, work_s),
        founders,
        members,
        rng.choice((1, 2, 3, 3, 4, 5)),
        rng.choice((4, 6, 10)),
        rng.choice((1, 1, 2)),
        rng.choice((0.0, 0.0, 0.2, 0.5)),
        tuple(cuts),
        rng.choice((0.0, 0.0, 0.3, 0.8)),
        rng.choice((0.05, 0.3)),
    )


class RaftSim(Lives[Member]):
    """A run of one plan."""

    def __init__(self, seed: int, plan: RaftPlan, *, traced: bool = False) -> None:
        super().__init__(Simulation(seed, traced=traced), plan.faults, every_s=0.3)
        self.plan = plan
        self.failures: list[str] = []
        self.working = True
        self.judge = Judge(plan.founders, plan.election_ticks, self.fail)
        self.numbers: dict[int, Member] = {}
        self._tick_s: dict[int, float] = {}
        self.note = self.sim.note
        self.begin_read = self.judge.begin_read
        self._cut_off: dict[int, Cut] = {}
        for cut in plan.cuts:
            self.sim.call_at(cut.at, self._cut_leaders, cut)
        self.begin(plan.members)

    def run(self) -> None:
        """Let all work, then heal the network, and wait until all members agree."""
        self.sim.run(self.plan.faults.calm_at)
        self.working = False
        # What is late, and a member that stands still or is dead unheard, may still come to light.
        self.sim.run(self.sim.now + 4.0)
        end = self.sim.now + HEAL_S
        while not (agreed := self._agrees()) and self.sim.now < end:
            pass
        if agreed:
            self.judge.counts["healed"] += 1
        elif self._is_doomed():
            self.judge.counts["doomed"] += 1
        else:
            self.fail(f"L1: no agreement {HEAL_S} s after the network healed")

    def _agrees(self) -> bool:
        """Let a leader propose, and say whether all members have applied it a second later."""
        last = self.judge.last_index
        leaders = [m for m in self._living_members() if m.machine.role is Role.LEADER]
        if leaders:
            max(leaders, key=lambda member: member.machine.state.term).propose()
        self.sim.run(self.sim.now + 1.0)
        members = self._living_members()
        applied = {member.machine.state.applied for member in members}
        texts = {tuple(member.texts) for member in members}
        return bool(leaders) and len(texts) == 1 and len(applied) == 1 and min(applied) > last

    def _living_members(self) -> list[Member]:
        return [self.numbers[n] for n in self.judge.configuration.members if self.lives(n)]

    # Members.

    def make(self, life: str) -> Member:
        number = number_of(life)
        founders = self.plan.founders if number in self.plan.founders.members else None
        member = Member(self, life, self.machine(number, founders))
        for gone in sorted(self.left):
            member.died(gone)
        self.numbers[number] = member
        self.judge.began(member)
        skew = self.plan.skew
        self._tick_s[number] = TICK_S * self.rng.uniform(1 - skew, 1 + skew)
        self.tick_later(member)
        return member

    def machine(self, number: int, founders: Configuration | None) -> Machine:
        """Make the machine of a member."""
        return OurRaft(
            number,
            founders,
            random.Random(f"{self.sim.seed} {number}"),
            election_ticks=self.plan.election_ticks,
            heartbeat_ticks=self.plan.heartbeat_ticks,
        )

    def lives(self, number: int) -> bool:
        """Say whether a member is there, and is known to be."""
        member = self.numbers[number]
        return member.alive and member.me not in self.left

    def crash(self, crash: Crash) -> None:
        """Let a member die, unless too few would be left."""
        number = number_of(self._names[crash.host])
        if all(self._survives(each, number) for each in self._configurations()):
            super().crash(crash)

    def _configurations(self) -> list[Configuration]:
        """Return the configurations that may come to count."""
        found = [self.judge.configuration]
        for member in self.workers.values():
            if member.alive:
                configuration = member.machine.state.configuration
                found.append(configuration)
                for entry in member.machine.tail():
                    if entry.change is not None:
                        configuration = configuration.after(entry.change)
                        found.append(configuration)
        return found

    def _survives(self, configuration: Configuration, without: int | None = None) -> bool:
        living = [v for v in configuration.voters if v != without and self.lives(v)]
        return not configuration.voters or len(living) >= configuration.quorum

    def _is_doomed(self) -> bool:
        """Say whether more than half of some voters are dead, so that no agreement is promised."""
        return not all(map(self._survives, self._configurations()))

    def wish(self, member: Member) -> MemberChange | None:
        """Return a change of the members that this leader should ask for, if there is one."""
        if member.machine.role is not Role.LEADER:
            return None
        configuration = member.machine.state.configuration
        strangers = [
            n for n, m in self.numbers.items() if m.alive and n not in configuration.members
        ]
        change = self._wish(member, configuration, strangers)
        try:
            safe = change is not None and self._survives(configuration.after(change))
        except UsageError:  # no voter would be left
            return None
        return change if safe else None

    def _wish(
        self, member: Member, configuration: Configuration, strangers: list[int]
    ) -> MemberChange | None:
        if self.rng.random() < self.plan.whims:
            kind = self.rng.choice(tuple(ChangeKind))
            return MemberChange(kind, self.rng.choice((*configuration.members, *strangers)))
        dead = [n for n in configuration.members if n in member.dead]
        if dead:
            return MemberChange(ChangeKind.REMOVE, self.rng.choice(dead))
        if configuration.learners and len(configuration.voters) < self.plan.voters:
            return MemberChange(ChangeKind.VOTER, self.rng.choice(configuration.learners))
        if strangers:
            return MemberChange(ChangeKind.LEARNER, self.rng.choice(strangers))
        return None

    # Time and messages.

    def act_later(self, member: Member, delay: float) -> None:
        """Let a member act again, so much later."""
        self.later(member, delay, member.act)

    def tick_later(self, member: Member) -> None:
        """Let a member's clock tick again."""
        self.later(member, self._tick_s[member.number], self._tick, member)

    def _tick(self, member: Member) -> None:
        member.tick()
        self.judge.ticked(member)
        self.tick_later(member)

    def _cut_leaders(self, cut: Cut) -> None:
        for member in self.numbers.values():
            if member.alive and member.machine.role is Role.LEADER:
                self._cut_off_now(member, cut)

    def _cut_off_now(self, member: Member, cut: Cut) -> None:
        self.note(member, "is cut off until", cut.until)
        self._cut_off[member.number] = cut

    def _apart(self, member: Member, target: Member) -> bool:
        """Say whether nothing passes between two members now."""
        for one, outwards in ((member, True), (target, False)):
            cut = self._cut_off.get(one.number)
            if cut is not None and self.sim.now < cut.until and (outwards or not cut.one_way):
                self.faults[Fault.ONE_WAY if cut.one_way else Fault.PARTITION] += 1
                return True
        return self.cut(member.me, target.me)

    def carry(self, member: Member, message: Message) -> None:
        """Let a message travel, or not."""
        target = self.numbers.get(message.to)
        if target is None:
            return  # it is on its way to be a member
        rng, faults = self.rng, self.plan.faults
        reset = self.strikes(Fault.RESET)
        if reset or self._apart(member, target) or self.strikes(Fault.DROP):
            self.note(member, "loses", message)
            # A connection that loses one of these is broken, and both ends come to know it.
            told = reset or isinstance(message, (InstallSnapshot, AppendReply))
            if told or rng.random() < 0.5:
                self.later(member, rng.random(), member.lose, target.number)
                self.later(target, rng.random(), target.lose, member.number)
            return
        low, high = faults.latency_s
        delay = rng.uniform(low, high if self.working else min(high, low + TICK_S / 4))
        if self.strikes(Fault.DELAY):
            delay += rng.random() * faults.delay_s
        if self.strikes(Fault.REORDER):
            delay += rng.random() * 10 * faults.latency_s[1]
        if self.strikes(Fault.DUPLICATE):
            late = delay + rng.random() * faults.delay_s
            self.later(target, late, self._deliver, target, message)
        self.later(target, delay, self._deliver, target, message)

    def _deliver(self, target: Member, message: Message) -> None:
        self.judge.received(target, message)
        target.receive(message)

    # The judge.

    def observe(self, member: Member, effects: list[RaftEffect]) -> None:
        """Judge what a member did; if it was elected, perhaps let it be cut off soon."""
        self.judge.observe(member, effects)
        elected = any(isinstance(e, Became) and e.role is Role.LEADER for e in effects)
        if elected and self.working and self.rng.random() < self.plan.coups:
            at = self.sim.now + self.rng.random() * 4 * self.plan.faults.latency_s[1]
            until = min(at + self.rng.uniform(0.0, 2.0), self.plan.faults.calm_at)
            self.sim.call_at(at, self._cut_off_now, member, Cut(at, until, False))

    def fail(self, text: str) -> None:
        """Note that a promise is broken."""
        self.failures.append(f"{self.sim.now:.6f} {text}")
        self.sim.note("BROKEN", text)


def run_seed(seed: int, *, traced: bool = False) -> Report:
    """Run one seed, and judge it."""
    plan = draw_plan(seed)
    return run_plan(_MODULE, plan, RaftSim(seed, plan, traced=traced))


def run_plan(module: str, plan: RaftPlan, run: RaftSim) -> Report:
    """Run a simulation, and report it."""
    try:
        run.run()
    except Exception:
        # Whatever a machine raises is found by this seed, and must be shown with it.
        run.fail(traceback.format_exc())
    sim = run.sim
    return Report(module, sim.seed, plan, run.failures, sim.trace, run.faults, run.judge.counts)


_RUNS = SeededRuns("simulation of Raft", _MODULE, run_seed, _LEAST)
run_seeds, main = _RUNS.run_seeds, _RUNS.main

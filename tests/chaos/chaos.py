"""Kill workers and agents of real jobs, and see whether the jobs keep their word.

    python -m tests.chaos --kills 200 --agent-kills 60 --seed 7

Some jobs lose workers, others an agent (`plan.py` draws the kills, `judge.py` says what must
hold). Exit code 0: all promises were kept. 1: one was broken. 3: faults did not strike as planned,
so the run proves nothing.
"""

from __future__ import annotations

import argparse
import random
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from signal import Signals

from holdfast.clock import SYSTEM_CLOCK
from tests.chaos.judge import (
    AgentKillRecord,
    Fall,
    Final,
    Record,
    Start,
    Verdict,
    WorkerKillsRecord,
    judge_agent_kill,
    judge_worker_kills,
)
from tests.chaos.plan import (
    AgentKill,
    How,
    Kill,
    Phase,
    Role,
    When,
    WorkerKills,
    draw_agent_kills,
    draw_worker_kills,
    kinds,
)
from tests.chaos.rig import AgentProcess, Hang, Rig, strike
from tests.chaos.worker import EXIT, FINISH, RAISE

__all__ = ["Chaos", "main", "run_agent_kill", "run_chaos", "run_worker_kills"]

WITHIN_S = 2.0
"""How long after an agent's end everything of it must be gone (P1)."""
BROKEN, INVALID = 1, 3

_SLICE_S = 0.02
_SIGNALS = {How.EXIT: EXIT, How.RAISE: RAISE}
_MODULE = "tests.chaos"


# Kills of workers.


def run_worker_kills(
    job: WorkerKills, name: str, *, within_s: float = WITHIN_S
) -> WorkerKillsRecord:
    """Do it, and return what was seen."""
    record = WorkerKillsRecord()
    with Rig(name) as rig:
        try:
            _worker_kills(job, rig, record)
            _settle(rig, record.left, within_s)
        except Hang as hang:
            record.trouble = str(hang)
        _note_rounds(rig, record)
        for agent in rig.agents:
            record.finals.append(_final(agent))
            record.reasons += [
                (said["round"], said["reason"])
                for said in agent.said
                if said["event"] in ("WorkersStopping", "WorkersRestarting")
            ]
    return record


def _worker_kills(job: WorkerKills, rig: Rig, record: WorkerKillsRecord) -> None:
    for _ in range(job.agents):
        rig.start(job.agents, max_restarts=job.max_restarts)
    number, struck_at = 0, None
    for kill in job.kills:
        number = _ready(rig, job, kill, number)
        if kill.when is not When.START:
            if struck_at is not None:
                record.recoveries_s.append(SYSTEM_CLOCK.monotonic() - struck_at)
            if not record.struck:
                _trace(rig)
        if _blow(rig, kill, number):
            record.struck.append((kill, number))
        struck_at = SYSTEM_CLOCK.monotonic()
    if job.survives:
        _all_at_work(rig, job.world, number)
        rig.finish()
    rig.wait(rig.ended, "the end of the job", all_live=False)


def _ready(rig: Rig, job: WorkerKills, kill: Kill, last: int) -> int:
    """Wait for the moment of a blow, in a round after the last one; return its number."""
    if kill.when is When.START:
        ranks = set(kill.ranks)
        rig.wait(
            lambda: rig.newest > last and ranks <= rig.started[rig.newest].keys(),
            f"the start of ranks {kill.ranks} in a round after {last}",
        )
        return rig.newest
    number = _all_at_work(rig, job.world, last)
    if kill.when is When.END:
        others = {r: mark for r, mark in rig.workers("work", number).items() if r not in kill.ranks}
        for mark in others.values():
            strike(mark.pid, FINISH)
        rig.wait(
            lambda: others.keys() <= rig.workers("done", number).keys(),
            f"ranks {sorted(others)} to be done in round {number}",
        )
    return number


def _all_at_work(rig: Rig, world: int, last: int) -> int:
    rig.wait(
        lambda: rig.newest > last and len(rig.workers("work", rig.newest)) == world,
        f"all {world} workers to be at work in a round after {last}",
    )
    return rig.newest


def _blow(rig: Rig, kill: Kill, number: int) -> bool:
    """Strike all victims; say whether the first was there. The others may die of its death."""
    signum = _SIGNALS[kill.how] if kill.how in _SIGNALS else Signals[kill.how.value]
    started = rig.started[number]
    first, *_ = [strike(started[rank], signum) for rank in kill.ranks]
    return first


# Kills of agents.


def run_agent_kill(
    agent_kill: AgentKill, name: str, *, within_s: float = WITHIN_S
) -> AgentKillRecord:
    """Do it, and return what was seen."""
    record = AgentKillRecord()
    with Rig(name) as rig:
        try:
            _agent_kill(agent_kill, rig, record, within_s)
            _settle(rig, record.left, within_s)
        except Hang as hang:
            record.trouble = str(hang)
        _note_rounds(rig, record)
        for role, agent in zip(Role, rig.agents, strict=True):
            record.finals[role] = _final(agent)
    return record


def _agent_kill(agent_kill: AgentKill, rig: Rig, record: AgentKillRecord, within_s: float) -> None:
    no_store = agent_kill.phase is Phase.CREATING and agent_kill.role is Role.HOST
    agents = {
        role: rig.start(
            2,
            phase=agent_kill.phase if role is agent_kill.role else None,
            hold=role is Role.SPARE,
            stubborn=agent_kill.phase is Phase.STOPPING,
            join_timeout_s=3.0 if no_store else 120.0,
        )
        for role in Role
    }
    victim, spare = agents[agent_kill.role], agents[Role.SPARE]
    _lead_to(agent_kill, rig, victim)
    spare.release()
    if not no_store:
        rig.wait(
            lambda: spare.heard("state", state="joining") is not None,
            "the spare to join",
            all_live=agent_kill.phase is not Phase.LEAVING,
        )
    if not no_store and agent_kill.phase is not Phase.LEAVING:
        keepers = [
            agents[role] for role in (Role.MEMBER, Role.SPARE) if role is not agent_kill.role
        ]
        rig.wait(
            lambda: all(agent.heard("member") for agent in keepers),
            "the store to have three members, or all but the victim",
        )
    _trace(rig)
    reached = agent_kill.phase is Phase.RUNNING or victim.heard("phase", phase=agent_kill.phase)
    record.struck = bool(reached) and strike(victim.pid, agent_kill.signal)
    victim.release()
    rig.finish()
    died_at: float | None = None

    def over() -> bool:
        nonlocal died_at
        if victim.code is not None and record.settled_s is None:
            now = SYSTEM_CLOCK.monotonic()
            died_at = now if died_at is None else died_at
            left = victim.traces.left()
            if not left:
                record.settled_s = SYSTEM_CLOCK.monotonic() - died_at
            elif now - died_at > within_s:
                raise Hang(f"P1: {within_s:g} s after the victim's end there is {left}")
        return rig.ended() and record.settled_s is not None

    rig.wait(over, "the end of all agents", slice_s=_SLICE_S, all_live=False)


def _lead_to(agent_kill: AgentKill, rig: Rig, victim: AgentProcess) -> None:
    """Bring the victim to its phase."""
    phases = list(Phase)
    if phases.index(agent_kill.phase) >= phases.index(Phase.RUNNING):
        _all_at_work(rig, 4, 0)
    match agent_kill.phase:
        case Phase.RUNNING:
            return
        case Phase.FAILED | Phase.STOPPING | Phase.RESTARTING:
            strike(_workers_of(victim)[0], signal.SIGKILL)
        case Phase.BARRIER:
            for pid in _workers_of(victim):  # no node stays there when the others are done too
                strike(pid, FINISH)
        case Phase.FINISHED | Phase.LEAVING:
            rig.finish()
            members = rig.agents[:2]
            rig.wait(
                lambda: all(agent.heard("WorkersFinished") for agent in members),
                "finished workers",
                all_live=False,
            )
        case _:
            pass
    rig.wait(
        lambda: victim.heard("phase", phase=agent_kill.phase) is not None,
        f"{agent_kill.phase}",
        all_live=agent_kill.phase is not Phase.LEAVING,
    )


def _workers_of(agent: AgentProcess) -> list[int]:
    started = agent.heard("WorkersStarted")
    assert started is not None
    return list(started["pids"])


# What both need.


def _trace(rig: Rig) -> None:
    for agent in rig.agents:
        agent.trace()


def _settle(rig: Rig, left: list[str], within_s: float) -> None:
    """Note what is left of agents that have all ended."""
    ended_at = SYSTEM_CLOCK.monotonic()

    def gone() -> bool:
        left[:] = [one for agent in rig.agents for one in agent.traces.left()]
        return not left or SYSTEM_CLOCK.monotonic() - ended_at > within_s

    rig.wait(gone, "nothing to be left", slice_s=_SLICE_S, all_live=False)


def _final(agent: AgentProcess) -> Final:
    ended, left = agent.heard("ended") or {}, agent.heard("left") or {}
    failures = ended.get("failures") or [(None, None)]
    code = -1 if agent.code is None else agent.code
    return Final(code, ended.get("text", ""), failures[0][0], tuple(left.get("leaks", ())))


def _note_rounds(rig: Rig, record: Record) -> None:
    """Put together what workers and agents said of the rounds."""
    record.rounds += sorted(rig.started)
    for mark in rig.marks.values():
        number = rig.round_of.get(mark.pid)
        if number is None:
            continue  # its agent died before it could tell
        if mark.mark == "start":
            record.starts.append(Start(number, mark.rank, mark.world, mark.restarts, mark.alone))
        elif mark.mark == "done":
            record.done.setdefault(number, {})[mark.rank] = mark.value
    record.falls += [
        Fall(said["round"], said["rank"], said["exit_code"])
        for agent in rig.agents
        for said in agent.said
        if said["event"] == "WorkerFailed"
    ]


# Many of them.


@dataclass(slots=True)
class Chaos:
    """What came of many jobs."""

    planned: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    settled_s: list[float] = field(default_factory=list)
    rounds: int = 0
    jobs: int = 0
    kills: int = 0
    agent_kills: int = 0

    def add_worker_kills(self, job: WorkerKills, record: WorkerKillsRecord) -> Verdict:
        """Count a job that lost workers, and judge it."""
        verdict = judge_worker_kills(job, record)
        self.planned += kinds(job.kills)
        self.struck += kinds(kill for kill, _ in record.struck)
        self.kills += len(record.struck)
        self.recoveries_s += record.recoveries_s
        self._add(verdict, record)
        return verdict

    def add_agent_kill(self, agent_kill: AgentKill, record: AgentKillRecord) -> Verdict:
        """Count a job that lost an agent, and judge it."""
        verdict = judge_agent_kill(agent_kill, record)
        self.planned += kinds([agent_kill])
        if record.struck:
            self.struck += kinds([agent_kill])
            self.agent_kills += 1
        if record.settled_s is not None:
            self.settled_s.append(record.settled_s)
        self._add(verdict, record)
        return verdict

    def _add(self, verdict: Verdict, record: Record) -> None:
        self.jobs += 1
        self.rounds += len(record.rounds)
        self.broken += verdict.broken
        self.invalid += verdict.invalid

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        if self.broken:
            return BROKEN
        return INVALID if self.invalid or self.struck != self.planned else 0

    def __str__(self) -> str:
        missed = self.planned - self.struck
        struck = f"{self.kills} kills of workers and {self.agent_kills} of agents struck"
        where = f"in {self.jobs} jobs with {self.rounds} rounds"
        lines = [
            f"{struck}, of {self.planned.total()} planned, {where}",
            f"kill to all workers at work again: {_spread(self.recoveries_s)}",
            f"agent's death to nothing left of it: {_spread(self.settled_s)}",
            f"{len(self.broken)} promises broken",
        ]
        if missed or self.invalid:
            lines.append(f"INVALID: did not strike: {dict(missed)} {'; '.join(self.invalid)}")
        return "\n".join(lines)


def _spread(times_s: Sequence[float]) -> str:
    if not times_s:
        return "never measured"
    ordered = sorted(times_s)
    at = [ordered[min(len(ordered) - 1, len(ordered) * part // 100)] for part in (50, 99)]
    return f"median {at[0]:.2f} s, 99 % within {at[1]:.2f} s, at most {ordered[-1]:.2f} s"


def run_chaos(
    seed: int,
    kills: int,
    agent_kills: int | Sequence[AgentKill],
    *,
    agents: int = 2,
    lanes: int = 2,
    within_s: float = WITHIN_S,
    show: Callable[[str], object] = lambda text: None,
) -> Chaos:
    """Do what the seed says, in several lanes; `show` gets a line for each job.

    `agent_kills` is how many to draw, or the ones to do.
    """
    chaos = Chaos()

    def worker_kills_job(job: WorkerKills, name: str) -> Callable[[], tuple[str, Verdict]]:
        def do() -> tuple[str, Verdict]:
            record = run_worker_kills(job, name, within_s=within_s)
            what = f"{len(record.struck)} blows, {job.max_restarts} restarts allowed"
            return what, chaos.add_worker_kills(job, record)

        return do

    def agent_kill_job(agent_kill: AgentKill, name: str) -> Callable[[], tuple[str, Verdict]]:
        def do() -> tuple[str, Verdict]:
            record = run_agent_kill(agent_kill, name, within_s=within_s)
            return str(agent_kill), chaos.add_agent_kill(agent_kill, record)

        return do

    jobs = enumerate(draw_worker_kills(seed, kills, agents))
    all_jobs = [worker_kills_job(job, f"worker-kills-{seed}-{one}") for one, job in jobs]
    drawn = draw_agent_kills(seed, agent_kills) if isinstance(agent_kills, int) else agent_kills
    all_jobs += [
        agent_kill_job(one, f"agent-kill-{seed}-{number}") for number, one in enumerate(drawn)
    ]
    with ThreadPoolExecutor(lanes) as pool:
        for what, verdict in pool.map(lambda do: do(), all_jobs):
            lines = [*verdict.invalid, *verdict.broken]
            show("\n  ".join([f"{'not ' if lines else ''}ok: {what}", *lines]))
    return chaos


def main(argv: Sequence[str] | None = None) -> int:
    """Run chaos from the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--kills", type=int, default=200, help="kills of workers (200)")
    parser.add_argument("--agent-kills", type=int, help="kills of agents (3 for 10 of workers)")
    parser.add_argument(
        "--agents", type=int, default=2, help="agents of a job that loses workers (2)"
    )
    parser.add_argument("--seed", type=int, help="what to repeat (a fresh one)")
    parser.add_argument("--lanes", type=int, default=2, help="jobs at a time (2)")
    options = parser.parse_args(argv)
    seed = options.seed
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 40)
    agent_kills = options.kills * 3 // 10 if options.agent_kills is None else options.agent_kills
    kills = f"--kills {options.kills} --agent-kills {agent_kills}"
    rest = f"--agents {options.agents} --seed {seed}"
    again = shlex.join(["python", "-m", _MODULE, *kills.split(), *rest.split()])

    def show(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    show(f"chaos: {again}")
    began_at = SYSTEM_CLOCK.monotonic()
    chaos = run_chaos(
        seed, options.kills, agent_kills, agents=options.agents, lanes=options.lanes, show=show
    )
    show(f"{chaos}\n{SYSTEM_CLOCK.monotonic() - began_at:.0f} s")
    if chaos.exit_code:
        show(f"again: {again}")
    return chaos.exit_code

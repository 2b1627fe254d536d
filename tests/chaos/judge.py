"""Did a job keep its word while it was being killed? What was seen, and what must be true of it.

    S1    the ranks of every round are 0 to n-1, each once
    S4    a node that leaves or is killed does not end the job for the others while enough are left
    S5    one blow, one new round
    S6    the restarts that workers are told of are the failures of the job so far
    AG-1  no worker starts before the earlier ones of its node, and their daemons, have ended
    P1    nothing of a dead agent is left: no process, folder, pipe or control group
    P4    the first cause is named, and the exit codes are right
    E2    when the store was never there, every node ends, and says so by the exit code
    END   the job's result is right

A run in which a fault did not strike as planned proves nothing: it is invalid, and never passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.chaos.plan import AgentKill, Kill, Phase, Role, WorkerKills
from tests.chaos.worker import TOTAL

__all__ = [
    "AgentKillRecord",
    "Fall",
    "Final",
    "Record",
    "Start",
    "Verdict",
    "WorkerKillsRecord",
    "judge_agent_kill",
    "judge_worker_kills",
]


@dataclass(frozen=True, slots=True)
class Start:
    """A worker began, and said what it was told."""

    round: int
    rank: int
    world: int
    restarts: int
    alone: bool


@dataclass(frozen=True, slots=True)
class Fall:
    """An agent told of a failed worker."""

    round: int
    rank: int
    code: int


@dataclass(frozen=True, slots=True)
class Final:
    """How an agent ended: its exit code, what it named as first cause, what it left open."""

    code: int
    text: str = ""
    first_cause: int | None = None
    leaks: tuple[str, ...] = ()

    @property
    def shell_code(self) -> int:
        """The code that a shell gives."""
        return self.code if self.code >= 0 else 128 - self.code


@dataclass(slots=True)
class Record:
    """What was seen of a job that lost workers."""

    rounds: list[int] = field(default_factory=list)
    """The rounds in which an agent has started workers."""
    starts: list[Start] = field(default_factory=list)
    falls: list[Fall] = field(default_factory=list)
    done: dict[int, dict[int, int]] = field(default_factory=dict)
    """By round, what each rank had computed."""
    left: list[str] = field(default_factory=list)
    """What was still there some time after an agent's end."""
    trouble: str = ""
    """What came instead of something that was awaited, with the stacks of the agents."""


@dataclass(slots=True)
class WorkerKillsRecord(Record):
    """What was seen of a job that lost workers."""

    struck: list[tuple[Kill, int]] = field(default_factory=list)
    """The blows that found all their victims alive, and in which round."""
    reasons: list[tuple[int, str]] = field(default_factory=list)
    """Why agents stopped or restarted their workers, with the round."""
    finals: list[Final] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class AgentKillRecord(Record):
    """What was seen of a job that lost an agent."""

    struck: bool = False
    """Whether the victim was alive, and in its phase, when it was killed."""
    finals: dict[Role, Final] = field(default_factory=dict)
    settled_s: float | None = None
    """How long after the victim's end everything of it was gone."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which promises were broken, and why the run does not count, if it does not."""

    broken: tuple[str, ...]
    invalid: tuple[str, ...] = ()


def judge_worker_kills(job: WorkerKills, record: WorkerKillsRecord) -> Verdict:
    """Judge a job that lost workers."""
    missed = len(job.kills) - len(record.struck)
    struck = tuple(kill for kill, _ in record.struck)
    invalid = []
    if struck != job.kills:
        invalid.append(f"{missed} of {len(job.kills)} blows did not strike as planned")
    if record.trouble:
        return Verdict((record.trouble,), tuple(invalid))
    broken = [*_broken_starts(record), *_leftovers(record)]
    rounds = [number for _, number in record.struck]
    first = min(record.rounds, default=0)
    if rounds != list(range(first, first + len(rounds))):
        broken.append(f"S5: blows fell in the rounds {rounds}: not one new round for each")
    last = first + len(job.kills) - (0 if job.survives else 1)
    if sorted(record.rounds) != list(range(first, last + 1)):
        broken.append(f"S5: rounds {record.rounds} came of {len(rounds)} blows")
    for start in record.starts:
        if start.restarts != start.round - first:
            broken.append(f"S6: {start}, in the round after {start.round - first} failures")
        if start.world != job.world:
            broken.append(f"S1: {start}, in a world of {job.world}")
    for kill, number in record.struck:
        broken += _misnamed(kill, number, record)
    return Verdict((*broken, *_end_of_worker_kills(job, record)), tuple(invalid))


def _misnamed(kill: Kill, number: int, record: WorkerKillsRecord) -> Iterable[str]:
    """Check that a blow, and nothing else, is named as what ended its round."""
    falls = [fall for fall in record.falls if fall.round == number]
    if not falls:
        yield f"P4: nobody told of the failure in round {number} ({kill})"
    for fall in falls:
        if fall.rank not in kill.ranks or fall.code != kill.how.code:
            yield f"P4: {fall} is not the blow: {kill}"
    names = tuple(f"rank {rank} " for rank in kill.ranks)
    for at, reason in record.reasons:
        if at == number and not any(name in reason for name in names):
            yield f"P4: round {number} ended by {kill}, an agent says: {reason}"


def _end_of_worker_kills(job: WorkerKills, record: WorkerKillsRecord) -> Iterable[str]:
    for final in record.finals:
        if final.leaks:
            yield f"P1: an agent left {', '.join(final.leaks)}"
    codes = [final.shell_code for final in record.finals]
    if job.survives:
        if codes != [0] * job.agents:
            yield f"END: the agents ended with {codes}: {[one.text for one in record.finals]}"
        yield from _wrong_result(record.done)
        return
    kill = job.kills[-1]
    expected = kill.how.code if kill.how.code >= 0 else 128 - kill.how.code
    if codes != [expected] * job.agents:
        yield f"P4: the agents ended with {codes}, not {expected} as after {kill}"
    for final in record.finals:
        if final.first_cause not in kill.ranks:
            yield f"P4: an agent names rank {final.first_cause} for {kill}: {final.text}"


def judge_agent_kill(agent_kill: AgentKill, record: AgentKillRecord) -> Verdict:
    """Judge a job that lost an agent."""
    invalid = () if record.struck else (f"{agent_kill}: the victim was not there to be killed",)
    if record.trouble:
        return Verdict((f"{agent_kill}: {record.trouble}",), invalid)
    broken = [*_broken_starts(record), *_leftovers(record)]
    if record.settled_s is None:
        broken.append("P1: something of the victim never went away")
    codes = {role: final.shell_code for role, final in record.finals.items()}
    # When the whole job is done, its end may come before the signal is heeded.
    just_done = agent_kill.phase is Phase.FINISHED and not agent_kill.sudden
    if codes.get(agent_kill.role) not in {128 + agent_kill.signal, 0 if just_done else None}:
        broken.append(f"P4: the victim ended with {codes.get(agent_kill.role)}")
    for role in Role:
        if role is agent_kill.role:
            continue
        final, well = record.finals[role], _ends_well(agent_kill, role)
        if just_done and role is Role.SPARE and final.text.startswith("RunOver: "):
            well = None  # the job's end came before the spare had announced itself
        if well is not None and well is not (final.code == 0):
            promise = "S4" if well else "E2"
            broken.append(f"{promise}: the {role} ended with {final.code} ({final.text})")
        if final.leaks:
            broken.append(f"P1: the {role} left {', '.join(final.leaks)}")
    if any(_ends_well(agent_kill, role) for role in Role if role is not agent_kill.role):
        broken += _wrong_result(record.done)
    return Verdict(tuple(f"{agent_kill}: {one}" for one in broken), invalid)


def _ends_well(agent_kill: AgentKill, role: Role) -> bool | None:
    """Say whether an agent that was not killed must end well, must not, or may either way."""
    if agent_kill.phase is Phase.LEAVING and role is Role.SPARE:
        # The run is over. The spare waited when it ended, or came later and was refused.
        return None
    # The store outlives its host, since the member and the spare keep it as well; unless the host
    # dies before it has founded the store.
    return agent_kill.role is not Role.HOST or agent_kill.phase is not Phase.CREATING


def _broken_starts(record: Record) -> Iterable[str]:
    """Check the ranks of every round, and that it began when the last one had ended."""
    by_round: dict[int, list[Start]] = {}
    for start in record.starts:
        by_round.setdefault(start.round, []).append(start)
        if not start.alone:
            yield f"AG-1: an earlier worker of the node still ran: {start}"
    for number, starts in sorted(by_round.items()):
        ranks, worlds = [start.rank for start in starts], {start.world for start in starts}
        # A round may end before all of its workers have begun.
        if len(worlds) > 1 or len(set(ranks)) < len(ranks) or max(ranks) >= max(worlds):
            yield f"S1: ranks {sorted(ranks)} of worlds {worlds} in round {number}"


def _wrong_result(done: Mapping[int, Mapping[int, int]]) -> Iterable[str]:
    values = done[max(done)] if done else {}
    if sum(values.values()) != TOTAL:
        yield f"END: the parts {dict(values)} do not add up to {TOTAL}"


def _leftovers(record: Record) -> Iterable[str]:
    if record.left:
        yield f"P1: left behind: {'; '.join(record.left)}"

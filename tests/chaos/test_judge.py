"""The judge of chaos: a run that went well is passed, and everything that can go wrong is found."""

from __future__ import annotations

from dataclasses import replace
from signal import Signals

import pytest

from tests.chaos.judge import (
    AgentKillRecord,
    Fall,
    Final,
    Start,
    Verdict,
    WorkerKillsRecord,
    judge_agent_kill,
    judge_worker_kills,
)
from tests.chaos.plan import AgentKill, How, Kill, Phase, Role, When, WorkerKills
from tests.chaos.worker import share

KILLS = (Kill(How.KILL, When.WORK, (1,)), Kill(How.EXIT, When.END, (2, 3)))
LONG, SHORT = WorkerKills(2, KILLS, 10), WorkerKills(2, KILLS, 1)
WHY = "rank 1 on here failed (killed by SIGKILL)"
FINE = Verdict(())


def good_worker_kills(*, survives: bool = True) -> WorkerKillsRecord:
    rounds = [1, 2, 3] if survives else [1, 2]
    last = Final(0) if survives else Final(3, "WorkersFailed", first_cause=2)
    return WorkerKillsRecord(
        rounds=rounds,
        starts=[Start(one, rank, 4, one - 1, True) for one in rounds for rank in range(4)],
        falls=[Fall(1, 1, -9), Fall(2, 3, 3)],
        done={
            2: {0: share(0, 4), 1: share(1, 4)},
            **({3: {rank: share(rank, 4) for rank in range(4)}} if survives else {}),
        },
        struck=[(KILLS[0], 1), (KILLS[1], 2)],
        reasons=[(1, WHY), (1, WHY), (2, "rank 2 on here failed (exit code 3)")],
        finals=[last, last],
    )


def test_worker_kills_that_go_well() -> None:
    assert judge_worker_kills(LONG, good_worker_kills()) == FINE
    assert judge_worker_kills(SHORT, good_worker_kills(survives=False)) == FINE


def test_a_start_killed_before_it_could_speak_is_no_fault() -> None:
    record = good_worker_kills()
    record.starts = record.starts[3:]
    assert judge_worker_kills(LONG, record) == FINE


def test_a_blow_that_did_not_strike_makes_a_job_invalid() -> None:
    record = good_worker_kills()
    del record.struck[1]
    assert judge_worker_kills(LONG, record).invalid == ("1 of 2 blows did not strike as planned",)


def test_a_hang_is_told() -> None:
    assert judge_worker_kills(LONG, WorkerKillsRecord(trouble="stacks")).broken == ("stacks",)
    agent_kill = AgentKill(Phase.RUNNING, Signals.SIGTERM, Role.MEMBER)
    verdict = judge_agent_kill(agent_kill, AgentKillRecord(trouble="stacks"))
    assert verdict.broken == ("SIGTERM to the member, running: stacks",)
    assert len(verdict.invalid) == 1


def check(promise: str, job: WorkerKills, record: WorkerKillsRecord) -> None:
    broken = judge_worker_kills(job, record).broken
    assert broken
    assert all(one.startswith(promise) for one in broken), broken


def test_s1_ranks() -> None:
    record = good_worker_kills()
    record.starts[5] = replace(record.starts[5], rank=0)
    check("S1", LONG, record)
    record.starts[5] = replace(record.starts[5], rank=4)
    check("S1", LONG, record)
    record.starts[5] = replace(record.starts[5], rank=1, world=5)
    check("S1", LONG, record)


def test_s5_one_round_for_each_blow() -> None:
    record = good_worker_kills()
    record.rounds = [1, 2, 3, 4]
    check("S5", LONG, record)
    record.rounds = [1, 2]
    check("S5", LONG, record)


def test_s6_the_count_of_restarts() -> None:
    record = good_worker_kills()
    record.starts[5] = replace(record.starts[5], restarts=0)
    check("S6", LONG, record)


def test_ag1_attempts_that_overlap() -> None:
    record = good_worker_kills()
    record.starts[5] = replace(record.starts[5], alone=False)
    check("AG-1", LONG, record)


@pytest.mark.parametrize("wrong", [Fall(1, 0, -9), Fall(1, 1, -15), Fall(2, 1, 3)])
def test_p4_the_wrong_one_is_blamed(wrong: Fall) -> None:
    record = good_worker_kills()
    record.falls.append(wrong)
    check("P4", LONG, record)


def test_p4_no_rank_is_blamed_or_another_reason_is_given() -> None:
    record = good_worker_kills()
    del record.falls[0]
    check("P4", LONG, record)
    record = good_worker_kills()
    record.reasons.append((1, "rank 11 on here failed"))
    check("P4", LONG, record)


def test_p4_the_end_of_a_job_that_fails() -> None:
    record = good_worker_kills(survives=False)
    record.finals[1] = replace(record.finals[1], first_cause=0)
    check("P4", SHORT, record)
    record.finals[1] = replace(record.finals[1], first_cause=3, code=1)
    check("P4", SHORT, record)


def test_p1_leaks() -> None:
    record = good_worker_kills()
    record.left = ["process 7"]
    check("P1", LONG, record)
    record = good_worker_kills()
    record.finals[0] = Final(0, leaks=("thread",))
    check("P1", LONG, record)


def test_the_end_of_a_job_that_survives() -> None:
    record = good_worker_kills()
    record.finals[0] = Final(1)
    check("END", LONG, record)
    record = good_worker_kills()
    del record.done[3][0]
    check("END", LONG, record)


# Kills of agents.


def good_agent_kill(agent_kill: AgentKill, **codes: int) -> AgentKillRecord:
    finals = {role: Final(codes.get(role, 0)) for role in Role}
    finals[agent_kill.role] = Final(-agent_kill.signal)
    return AgentKillRecord(
        rounds=[1, 2],
        starts=[Start(1, rank, 4, 0, True) for rank in range(4)],
        done={2: {rank: share(rank, 4) for rank in range(4)}},
        struck=True,
        finals=finals,
        settled_s=0.1,
    )


MEMBER = AgentKill(Phase.STOPPING, Signals.SIGTERM, Role.MEMBER)
HOST = AgentKill(Phase.STOPPING, Signals.SIGKILL, Role.HOST)


def test_agent_kills_that_go_well() -> None:
    assert judge_agent_kill(MEMBER, good_agent_kill(MEMBER)) == FINE
    assert judge_agent_kill(HOST, good_agent_kill(HOST)) == FINE
    polite = replace(HOST, signal=Signals.SIGTERM)
    record = good_agent_kill(polite)
    record.finals[Role.HOST] = Final(128 + Signals.SIGTERM)
    assert judge_agent_kill(polite, record) == FINE


def test_a_victim_that_was_not_there_makes_an_agent_kill_invalid() -> None:
    record = good_agent_kill(MEMBER)
    record.struck = False
    verdict = judge_agent_kill(MEMBER, record)
    assert (len(verdict.invalid), verdict.broken) == (1, ())


def broken_by(agent_kill: AgentKill, record: AgentKillRecord) -> str:
    [broken] = judge_agent_kill(agent_kill, record).broken
    return broken.removeprefix(f"{agent_kill}: ").partition(":")[0]


def test_s4_the_remaining_nodes_go_on() -> None:
    assert broken_by(MEMBER, good_agent_kill(MEMBER, spare=1)) == "S4"
    record = good_agent_kill(MEMBER)
    record.done[2][0] = 0
    assert broken_by(MEMBER, record) == "END"
    record.done = {}
    assert broken_by(MEMBER, record) == "END"


def test_s4_the_remaining_nodes_go_on_without_the_host() -> None:
    assert broken_by(HOST, good_agent_kill(HOST, spare=1)) == "S4"
    assert broken_by(HOST, good_agent_kill(HOST, member=1)) == "S4"


def test_e2_no_node_succeeds_without_the_store() -> None:
    creating = replace(HOST, phase=Phase.CREATING)
    assert judge_agent_kill(creating, good_agent_kill(creating, member=1, spare=1)) == FINE
    assert broken_by(creating, good_agent_kill(creating, spare=1)) == "E2"
    assert broken_by(creating, good_agent_kill(creating, member=1)) == "E2"


@pytest.mark.parametrize("agent_kill", [HOST, MEMBER])
def test_after_the_run_no_worker_is_killed_and_a_spare_may_be_refused(
    agent_kill: AgentKill,
) -> None:
    leaving = replace(agent_kill, phase=Phase.LEAVING)
    for code in (0, 1):
        assert judge_agent_kill(leaving, good_agent_kill(leaving, spare=code)) == FINE


def test_p4_the_victims_exit_code() -> None:
    record = good_agent_kill(MEMBER)
    record.finals[Role.MEMBER] = Final(0)
    assert broken_by(MEMBER, record) == "P4"


def test_a_node_that_is_signalled_when_all_is_done_may_succeed() -> None:
    agent_kill = replace(MEMBER, phase=Phase.FINISHED)
    record = good_agent_kill(agent_kill)
    record.finals[Role.MEMBER] = Final(0)
    assert judge_agent_kill(agent_kill, record) == FINE


def test_a_spare_may_come_too_late_for_a_job_that_is_done() -> None:
    agent_kill = replace(MEMBER, phase=Phase.FINISHED)
    record = good_agent_kill(agent_kill)
    record.finals[Role.SPARE] = Final(1, text="RunOver: run 'a' ended")
    assert judge_agent_kill(agent_kill, record) == FINE
    record.finals[Role.SPARE] = Final(1, text="RendezvousClosed: run 'a' is closed")
    assert broken_by(agent_kill, record) == "S4"
    record.finals[Role.SPARE] = Final(1, text="RunOver: run 'a' ended")
    assert broken_by(MEMBER, record) == "S4"


def test_p1_what_is_left_of_an_agent_kill() -> None:
    record = good_agent_kill(MEMBER)
    record.left = ["process 7"]
    assert broken_by(MEMBER, record) == "P1"
    record = good_agent_kill(MEMBER)
    record.settled_s = None
    assert broken_by(MEMBER, record) == "P1"
    record = good_agent_kill(MEMBER)
    record.finals[Role.HOST] = Final(0, leaks=("thread",))
    assert broken_by(MEMBER, record) == "P1"

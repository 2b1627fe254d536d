"""Chaos as a whole: small runs, what the command says of them, and which ones do not count."""

from __future__ import annotations

from signal import Signals

import pytest

from tests.chaos import chaos as module
from tests.chaos.chaos import BROKEN, INVALID, Chaos, main, run_agent_kill, run_worker_kills
from tests.chaos.judge import (
    AgentKillRecord,
    WorkerKillsRecord,
    judge_agent_kill,
    judge_worker_kills,
)
from tests.chaos.plan import AgentKill, How, Kill, Phase, Role, When, WorkerKills

PATIENT_S = 20.0
KILL = Kill(How.KILL, When.WORK, (1,))
AGENT_KILL = AgentKill(Phase.STARTED, Signals.SIGTERM, Role.MEMBER)


def test_a_job_of_one_node_survives_a_blow() -> None:
    job = WorkerKills(1, (KILL, Kill(How.RAISE, When.END, (0,))), max_restarts=2)
    record = run_worker_kills(job, "small", within_s=PATIENT_S)
    verdict = judge_worker_kills(job, record)
    assert (verdict.broken, verdict.invalid) == ((), ())
    assert record.rounds == [1, 2, 3]
    assert len(record.recoveries_s) == 1


def test_a_job_that_may_not_fail_ends_by_the_first_blow() -> None:
    job = WorkerKills(1, (KILL,), max_restarts=0)
    record = run_worker_kills(job, "brittle", within_s=PATIENT_S)
    verdict = judge_worker_kills(job, record)
    assert (verdict.broken, verdict.invalid) == ((), ())
    assert record.finals[0].shell_code == 137


def test_an_agent_is_killed_and_the_spare_takes_its_place() -> None:
    record = run_agent_kill(AGENT_KILL, "agent-kill", within_s=PATIENT_S)
    verdict = judge_agent_kill(AGENT_KILL, record)
    assert (verdict.broken, verdict.invalid) == ((), ())
    assert record.rounds == [1, 2]


def test_a_node_that_is_done_works_again_when_it_loses_the_host() -> None:
    """S4: the host dies before it has said that its workers are done."""
    agent_kill = AgentKill(Phase.FINISHED, Signals.SIGKILL, Role.HOST)
    record = run_agent_kill(agent_kill, "widow", within_s=PATIENT_S)
    verdict = judge_agent_kill(agent_kill, record)
    assert (verdict.broken, verdict.invalid) == ((), ())
    assert record.rounds == [1, 2]


def test_what_did_not_strike_is_invalid() -> None:
    chaos = Chaos()
    chaos.add_agent_kill(AGENT_KILL, AgentKillRecord(trouble="none", struck=False))
    chaos.broken.clear()
    assert chaos.exit_code == INVALID
    assert "INVALID: did not strike: {'SIGTERM, all workers started': 1}" in str(chaos)


def test_what_is_broken_is_worse_than_what_is_invalid() -> None:
    chaos = Chaos()
    chaos.add_worker_kills(WorkerKills(1, (KILL,), 0), WorkerKillsRecord(trouble="stacks"))
    assert chaos.invalid
    assert chaos.exit_code == BROKEN


def test_the_command_says_how_to_repeat_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "run_chaos", lambda *args, **more: Chaos(broken=["S5"]))
    assert main(["--kills", "20", "--seed", "7"]) == BROKEN
    again = "python -m tests.chaos --kills 20 --agent-kills 6 --agents 2 --seed 7"
    assert f"again: {again}" in capsys.readouterr().out


def test_the_command_of_a_run_that_goes_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kills", "0", "--agent-kills", "0"]) == 0
    said = capsys.readouterr().out
    assert "0 promises broken" in said
    assert "again: python" not in said

"""Chaos as a whole: small runs, what the command says of them, and which ones do not count."""

from __future__ import annotations

from signal import Signals

import pytest

from holdfast.testing import chaos as module
from holdfast.testing.chaos import BROKEN, INVALID, Chaos, main, run_murder, run_storm
from holdfast.testing.chaosjudge import MurderRecord, StormRecord, judge_murder, judge_storm
from holdfast.testing.chaosplan import How, Kill, Murder, Phase, Role, Storm, When

PATIENT_S = 20.0
KILL = Kill(How.KILL, When.WORK, (1,))
MURDER = Murder(Phase.STARTED, Signals.SIGTERM, Role.MEMBER)


def test_a_job_of_one_node_survives_a_blow() -> None:
    storm = Storm(1, (KILL, Kill(How.RAISE, When.END, (0,))), max_restarts=2)
    record = run_storm(storm, "small", within_s=PATIENT_S)
    verdict = judge_storm(storm, record)
    assert (verdict.broken, verdict.invalid) == ((), ())
    assert record.rounds == [1, 2, 3]
    assert len(record.recoveries_s) == 1


def test_a_job_that_may_not_fail_ends_by_the_first_blow() -> None:
    storm = Storm(1, (KILL,), max_restarts=0)
    record = run_storm(storm, "brittle", within_s=PATIENT_S)
    verdict = judge_storm(storm, record)
    assert (verdict.broken, verdict.invalid) == ((), ())
    assert record.finals[0].shell_code == 137


def test_an_agent_is_killed_and_the_spare_takes_its_place() -> None:
    record = run_murder(MURDER, "murder", within_s=PATIENT_S)
    verdict = judge_murder(MURDER, record)
    assert (verdict.broken, verdict.invalid) == ((), ())
    assert record.rounds == [1, 2]


def test_a_node_that_is_done_says_so_when_it_loses_the_host() -> None:
    """E2, AG-7: the host dies before it has said that its workers are done."""
    murder = Murder(Phase.FINISHED, Signals.SIGKILL, Role.HOST)
    record = run_murder(murder, "widow", within_s=PATIENT_S)
    verdict = judge_murder(murder, record)
    assert (verdict.broken, verdict.invalid) == ((), ())
    assert "is lost: no connection" in record.finals[Role.MEMBER].text


def test_what_did_not_strike_is_invalid() -> None:
    chaos = Chaos()
    chaos.add_murder(MURDER, MurderRecord(trouble="none", struck=False))
    chaos.broken.clear()
    assert chaos.exit_code == INVALID
    assert "INVALID: did not strike: {'SIGTERM, all workers started': 1}" in str(chaos)


def test_what_is_broken_is_worse_than_what_is_invalid() -> None:
    chaos = Chaos()
    chaos.add_storm(Storm(1, (KILL,), 0), StormRecord(trouble="stacks"))
    assert chaos.invalid
    assert chaos.exit_code == BROKEN


def test_the_command_says_how_to_repeat_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "run_chaos", lambda *args, **more: Chaos(broken=["S5"]))
    assert main(["--kills", "20", "--seed", "7"]) == BROKEN
    again = "python -m holdfast.testing.chaos --kills 20 --murders 6 --agents 2 --seed 7"
    assert f"again: {again}" in capsys.readouterr().out


def test_the_command_of_a_run_that_goes_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kills", "0", "--murders", "0"]) == 0
    said = capsys.readouterr().out
    assert "0 promises broken" in said
    assert "again: python" not in said

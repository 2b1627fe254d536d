"""The simulation of Raft: what it draws, counts, and prints."""

from __future__ import annotations

import pytest

from holdfast.store.raft.leader import RaftLeader
from holdfast.store.raft.log import EntryLog
from tests.sim.raft.sim import main, run_seed


def test_one_seed_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "role=<Role.LEADER: 'leader'>" in shown
    assert "seed 3: 0 broken promises" in shown


def test_a_broken_promise_is_found_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RaftLeader, "_hears_majority", lambda self: True)
    assert main(["--seeds", "30", "--start", "1", "--processes", "1"]) == 1
    assert "R8:" in capsys.readouterr().out


def test_what_the_machine_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(EntryLog, "adopt", broken)
    assert any("planted" in text for text in run_seed(1).failures)

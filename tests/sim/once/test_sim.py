"""The simulation of repeated calls: what it draws, counts, and prints."""

from __future__ import annotations

import pytest

from holdfast.rpc.server.dedup import DedupTable, DedupVerdict
from tests.sim.once.sim import main, run_seed


def test_a_run_has_calls_that_are_answered_and_repeated() -> None:
    counts = run_seed(1).counts
    assert counts["answered"] > 20
    assert counts["retries"] > 5


def test_one_seed_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "w0.0 sends call 0 of w0.0" in shown or "w1.1 sends call 0 of w1.1" in shown
    assert "seed 3: 0 broken promises" in shown


def test_a_broken_promise_is_found_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DedupTable, "arrived", lambda *args: (DedupVerdict.RUN, None))
    assert main(["--seeds", "3", "--start", "1", "--processes", "1"]) == 1
    assert "O1: call" in capsys.readouterr().out


def test_what_the_real_parts_raise_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(DedupTable, "answered", broken)
    assert any("planted" in text for text in run_seed(1).failures)

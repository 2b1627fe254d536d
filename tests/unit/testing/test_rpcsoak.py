"""The audited load: what its verdict says, and a small run of the real thing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.testing import rpcsoak
from holdfast.testing.rpcsoak import Audit, main, soak

FAULTS = {"drop": 40, "duplicate": 20, "delay": 40, "reset": 4}
CLEAN = Audit(2000, 1990, 10, 0, 0, 0, 0, FAULTS)


def test_a_run_is_clean_if_every_call_is_accounted_for() -> None:
    assert CLEAN.clean
    assert CLEAN.valid
    assert str(CLEAN).startswith("clean: 2000 calls, 1990 succeeded, 10 failed, 0 lost")
    for broken in (
        replace(CLEAN, lost=1),
        replace(CLEAN, repeated=1),
        replace(CLEAN, mismatched=1),
        replace(CLEAN, unresolved=1),
    ):
        assert not broken.clean
        assert str(broken).startswith("BROKEN")


def test_a_run_without_its_faults_is_invalid_and_not_clean() -> None:
    quiet = replace(CLEAN, faults={**FAULTS, "reset": 0})
    assert not quiet.valid
    assert str(quiet).startswith("invalid")


@pytest.mark.parametrize(
    ("audit", "code"),
    [(CLEAN, 0), (replace(CLEAN, lost=1), 1), (replace(CLEAN, faults={}), 3)],
)
def test_the_exit_code_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], audit: Audit, code: int
) -> None:
    monkeypatch.setattr(rpcsoak, "soak", lambda calls, workers, seed: audit)
    assert main(["--calls", "10", "--seed", "5"]) == code
    assert capsys.readouterr().out == f"seed 5\n{audit}\n"


def test_calls_through_a_faulty_transport_run_once() -> None:
    audit = soak(800, 4, 3)
    assert audit.calls == 800
    assert audit.clean, str(audit)
    assert sum(audit.faults.values()) > 10

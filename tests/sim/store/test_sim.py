"""The judge of the store simulation, and its command line. The seeds are run in tests/sim."""

from __future__ import annotations

import pytest

from holdfast.store.ops import Add, Entry, Get, MultiGet
from holdfast.store.service import Service
from holdfast.testing.checkers import UNKNOWN, Call
from holdfast.testing.network import Simulation
from tests.sim.store import sim
from tests.sim.store.actors import Journal
from tests.sim.store.sim import draw_plan, main, run_seed
from tests.sim.store.users import PAIR


def judged(*calls: Call) -> list[str]:
    journal = Journal(Simulation(0))
    journal.calls[1] = list(calls)
    sim._judge(journal, draw_plan(0))
    return journal.failures


def test_good_calls_are_not_blamed() -> None:
    pair = (Entry("p/a", b"1", 4), Entry("p/b", b"1", 4))
    assert (
        judged(
            Call("a", Add("n", 1), 1, 1, 2),
            Call("a", MultiGet(PAIR), (None, None), 3, 4),
            Call("a", MultiGet(("x", "y")), (None, None), 3, 4),
            Call("a", Add("n", 1), UNKNOWN, 5),
            Call("b", Get("n"), Entry("n", b"2", 3), 6, 7),
        )
        == []
    )
    assert "a torn read" not in "".join(judged(Call("a", MultiGet(PAIR), pair, 3, 4)))


def test_a_history_without_an_order_is_blamed() -> None:
    (text,) = judged(Call("a", Add("n", 1), 2, 1, 2))
    assert "K1: key 'n': not linearizable" in text


def test_a_torn_read_is_blamed() -> None:
    pair = (Entry("p/a", b"1", 4), None)
    assert any("a torn read" in text for text in judged(Call("a", MultiGet(PAIR), pair, 3, 4)))


def test_two_values_of_one_revision_are_blamed() -> None:
    failures = judged(
        Call("a", Get("n"), Entry("n", b"1", 3), 6, 7),
        Call("a", Get("n"), Entry("n", b"2", 3), 8, 9),
    )
    assert any("was seen as" in text for text in failures)


def test_a_machine_that_raises_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(self: Service, connection: int, payload: bytes, now: float) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Service, "receive", receive)
    report = run_seed(4)
    assert "ZeroDivisionError" in report.failures[0]
    assert "--seed 4" in str(report)


def test_one_seed_prints_its_trace_and_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "6"]) == 0
    out = capsys.readouterr().out
    assert "0 broken promises" in out
    assert str(draw_plan(6).faults).split("\n")[0] in out
    assert out.count("\n") > 1000


def test_many_seeds_print_their_start_and_their_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "40", "--start", "1000", "--processes", "2"]) == 0
    out = capsys.readouterr().out
    assert "store simulation: 40 seeds from 1000\n" in out
    assert "0 of 40 seeds broke a promise" in out


def test_fresh_seeds_are_drawn_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        main(["--seeds", "1", "--processes", "1"])
    starts = {line for line in capsys.readouterr().out.split("\n") if "seeds from" in line}
    assert len(starts) == 2


def test_a_broken_promise_and_an_easy_run_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--seeds", "1", "--start", "0", "--processes", "1"]) == 1
    assert "too easy to count" in capsys.readouterr().out
    monkeypatch.setattr(Service, "_tell_waits", lambda self, change: None)
    assert main(["--seeds", "3", "--start", "0", "--processes", "1"]) == 1
    out = capsys.readouterr().out
    assert "again: python -m tests.sim.store --seed" in out
    assert "of 3 seeds broke a promise" in out


@pytest.mark.parametrize("argv", [["--seeds", "0"], ["--seeds", "-3"], ["--processes", "0"]])
def test_numbers_below_one_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "must be 1 or more" in capsys.readouterr().err

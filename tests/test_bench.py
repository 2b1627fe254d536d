"""The aims of the benchmarks: each names a measurement that exists, and a run is judged by them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from bench.__main__ import GROWING, measurements
from bench.aims import AIMS, Aim
from bench.charts import draw
from bench.growth import exponent, report, series
from bench.judge import Judged, judge, table
from bench.machine import Machine, lacks
from bench.ranks import together

SMALL = Machine("Linux", "3.11", "2.13.0", "abc", 2, 0.0, "", "there is no `ip`")
LARGE = SMALL._replace(cores=16, gpu="H200", networks="")
AIM = Aim("a", "work", "ms", "m", "", ("x", "ours"), "≤", 0.5, ("x", "torch"), ("x", "torch"))


def judged(aim: Aim, figures: dict[str, Any], missing: str = "") -> Judged:
    (row,) = judge([aim], {"m": {"x": figures}}, lambda _: missing)
    return row


def test_each_aim_has_a_name_of_its_own_and_a_measurement() -> None:
    known = measurements(SMALL)
    assert len({aim.name for aim in AIMS}) == len(AIMS)
    assert {aim.measurement for aim in AIMS} | {name for name, _ in GROWING} <= known.keys()


@pytest.mark.parametrize(
    ("sense", "ours", "outcome", "of_aim"),
    [("≤", 1.0, "met", 1), ("≤", 4.0, "missed", 0.25), ("≥", 1.0, "met", 1), ("≥", 4, "met", 4)],
)
def test_a_share_is_compared_with_its_bound(
    sense: str, ours: float, outcome: str, of_aim: float
) -> None:
    row = judged(AIM._replace(sense=sense), {"ours": ours, "torch": [2.0, 1.0, 9.0]})
    assert (row.outcome, row.share, row.of_aim) == (outcome, ours / 2, of_aim)


@pytest.mark.parametrize("figures", [{}, {"ours": 1.0}, {"ours": "failed", "torch": 2.0}])
def test_a_row_without_figures_says_so(figures: dict[str, Any]) -> None:
    row = judged(AIM, figures)
    assert (row.outcome, row.share, row.of_aim) == ("not measured", None, None)


def test_a_share_of_nothing_is_missed() -> None:
    assert judged(AIM, {"ours": 5, "torch": 0}).outcome == "missed"


def test_a_row_that_the_machine_cannot_measure_has_no_figure() -> None:
    row = judged(AIM, {"ours": 1.0, "torch": 2.0}, "needs a GPU")
    assert (row.holdfast, row.outcome) == (None, "needs a GPU")
    assert table([row]).endswith("0 met, 0 missed, 1 without a figure")


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ((), ""),
        (("torch",), ""),
        (("gpu",), "needs a GPU"),
        (("cores",), "needs 16 cores, there are 2"),
        (("networks", "gpu"), "needs networks of its own (there is no `ip`); a GPU"),
    ],
)
def test_what_a_small_machine_lacks_is_told(needs: tuple[str, ...], words: str) -> None:
    assert lacks(SMALL, needs) == words
    assert not lacks(LARGE, needs)


def test_a_busy_machine_is_told_from_an_idle_one() -> None:
    words = "needs an idle machine, 3.0 of 16 cores were busy"
    assert lacks(LARGE._replace(busy=3.0), ("idle",)) == words
    assert lacks(LARGE._replace(busy=3.0), ("cores",)) == words
    assert lacks(SMALL._replace(torch=""), ("torch",)) == "needs torch"


@pytest.mark.parametrize(("power", "figures"), [(0, [3, 3, 3]), (1, [1, 2, 4]), (2, [1, 4, 16])])
def test_the_exponent_of_a_power_is_found(power: float, figures: list[float]) -> None:
    found = exponent(dict(zip((1, 2, 4), figures, strict=True)))
    assert found == pytest.approx(power)


def test_one_count_has_no_exponent() -> None:
    assert exponent({1: 5.0}) is None
    assert series({1: 5.0}) == {"figures": {"1": 5.0}, "exponent": None}
    assert report({"peers": {"holdfast": series({1: 5.0})}}).splitlines()[-1].split()[-1] == "-"


def test_charts_are_drawn_from_what_a_run_wrote() -> None:
    rows = [judged(AIM, {"ours": ours, "torch": 2.0}) for ours in (0.1, 8.0)]
    rows.append(judged(AIM, {}, "needs a GPU"))
    run = {
        "machine": SMALL._asdict(),
        "quick": True,
        "aims": [row._asdict() | {"of_aim": row.of_aim} for row in rows],
        "growth": {"peers & more": {"holdfast": series({1: 1.0, 4: 4.0, 16: 17.0})}},
    }
    charts = {name: ET.fromstring(text) for name, text in draw(run).items()}
    assert charts.keys() == {"aims.svg", "torch.svg", "growth.svg"}
    for name, bars in (("aims.svg", 2), ("torch.svg", 2)):
        assert len(charts[name].findall("{*}rect")) == 1 + bars
    words = [element.text or "" for element in charts["growth.svg"].findall("{*}text")]
    assert any("peers & more (holdfast): exponent 1.0" in text for text in words)


def test_a_run_without_figures_has_no_charts() -> None:
    assert draw({"machine": SMALL._asdict(), "quick": False, "aims": [], "growth": {}}) == {}


def test_forked_processes_go_through_their_phases_together() -> None:
    def act(rank: int) -> Any:
        yield 0
        yield rank
        yield 7

    phases = together(3, act)
    assert [phase.most for phase in phases] == [2, 7]


def test_a_forked_process_that_fails_ends_the_measurement(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def act(rank: int) -> Any:
        yield 0
        if rank == 1:
            raise ValueError("boom")
        yield 0

    with pytest.raises(SystemExit, match="a process failed"):
        together(3, act)
    assert "boom" in capfd.readouterr().err

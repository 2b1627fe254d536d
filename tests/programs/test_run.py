"""What `make programs` says of figures, and when it ends with an error."""

from __future__ import annotations

import sys
import time

import pytest

from tests.programs.run import SCRIPTS, Outcome, commands, compare, figures, main, run, same

ONE = Outcome(("1.5",), "")
OTHER = Outcome(("1.5", "2"), "")
FAILED = Outcome(("1.5",), "exit code 3")


def test_figures_are_found_in_lines_of_any_order() -> None:
    output = "x\n[0]:figure rank 0: 3.0 \nwarning\nfigure 1\nno figures here\n"
    assert figures(output) == ("1", "rank 0: 3.0")


def test_a_figure_stands_on_a_line_of_its_own_whatever_was_printed_before() -> None:
    for script in SCRIPTS.glob("*.py"):
        text = script.read_text(encoding="utf-8")
        assert text.count('f"figure') == 0, script
        assert text.count('f"\\nfigure') or script.stem == "torchft_groups", script
    assert figures("no line feed\nfigure 1\n") == ("1",)


@pytest.mark.parametrize(
    ("torch", "ours", "expected", "verdicts"),
    [
        (ONE, ONE, True, ["same"]),
        (ONE, OTHER, False, ["same", "DIFFERENT"]),
        (ONE, FAILED, False, ["same", "FAILED"]),
        (FAILED, FAILED, False, ["same", "FAILED"]),
        (Outcome((), ""), Outcome((), ""), False, ["FAILED"]),
    ],
)
def test_each_figure_and_each_bad_end_has_a_row(
    torch: Outcome, ours: Outcome, expected: bool, verdicts: list[str]
) -> None:
    assert same(torch, ours) is expected
    assert [line.split()[-1] for line in compare("name", torch, ours)] == verdicts


def test_a_program_is_run_to_its_end_or_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([sys.executable, "-c", "print('figure 7')"]) == Outcome(("7",), "")
    failing = run([sys.executable, "-c", "import sys; print('figure 7'); sys.exit('bad')"])
    assert failing == Outcome(("7",), "exit code 1")
    assert "bad" in capsys.readouterr().err
    begun = time.monotonic()
    hanging = run([sys.executable, "-c", "import signal; signal.pause()"], limit_s=0.2)
    assert hanging == Outcome((), "not done within 0.2 s")
    assert time.monotonic() - begun < 200


def test_both_sides_have_the_same_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands("torch").keys() == commands("ours").keys()
    with pytest.raises(SystemExit):
        main(["tetris"])
    assert "no such program: tetris" in capsys.readouterr().err

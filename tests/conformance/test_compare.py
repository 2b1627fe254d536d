"""What `make conformance` says of differences, and when it ends with an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.compare import Comparison, Outcome, Reason, read_reasons
from tests.conformance.outcomes import is_done, read

PASSED: Outcome = ("passed", "")
FAILED: Outcome = ("failed", "Traceback:\nValueError: odd\n  in a line")
SKIPPED: Outcome = ("skipped", "no GPU")
SCRIPT = Reason("torchscript", "is scripted")
OTHER = Reason("other", "is torch's own")


def test_a_class_is_counted_and_what_differs_is_named_with_its_reason() -> None:
    torch = {"A::one": PASSED, "A::two": PASSED, "A::three": FAILED, "A::four": SKIPPED}
    ours = {"A::one": PASSED, "A::two": FAILED, "A::three": PASSED, "A::four": SKIPPED}
    comparison = Comparison(torch, ours, {"A::two": OTHER})
    assert list(comparison.lines()) == [
        " ours / torch  class                                 apart",
        "    1 / 2      A                                     1 skipped, 1 fail with torch",
        "      two: is torch's own",
        "    1 / 2      all of them                           1 skipped, 1 fail with torch",
        "aside: 0 for calls and RRefs inside TorchScript",
        "aside: 0 for events of a profiler from other workers",
        "of the rest, 1 of 2 pass: 50.0 %",
    ]
    assert comparison.troubles() == []


def test_what_is_set_aside_does_not_count() -> None:
    torch = {"A::one": PASSED, "B::two": PASSED}
    comparison = Comparison(torch, {"A::one": PASSED, "B::two": FAILED}, {"B::two": SCRIPT})
    assert list(comparison.lines())[-3:] == [
        "aside: 1 for calls and RRefs inside TorchScript",
        "aside: 0 for events of a profiler from other workers",
        "of the rest, 1 of 1 pass: 100.0 %",
    ]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({"A::one": FAILED}, "failed: ValueError: odd"),
        ({"A::one": ("hung", "")}, "hung: "),
        ({"A::one": SKIPPED}, "skipped: no GPU"),
        ({}, "missing: "),
    ],
)
def test_a_difference_without_a_reason_is_trouble(ours: dict[str, Outcome], said: str) -> None:
    comparison = Comparison({"A::one": PASSED}, ours, {})
    assert comparison.troubles() == ["A::one"]
    assert f"      one: NO REASON IS KNOWN: {said}" in list(comparison.lines())


def test_a_reason_of_a_test_that_passes_is_trouble() -> None:
    comparison = Comparison({"A::one": PASSED}, {"A::one": PASSED}, {"A::one": OTHER})
    assert comparison.troubles() == ["A::one"]
    assert "      one: PASSES, and has a reason not to" in list(comparison.lines())


def test_reasons_of_what_was_not_run_are_no_trouble() -> None:
    comparison = Comparison({"A::one": PASSED}, {"A::one": PASSED}, {"B::two": OTHER})
    assert comparison.troubles() == []


def test_the_reasons_can_be_read() -> None:
    reasons = read_reasons(Path(__file__).parent / "reasons.toml")
    assert {reason.kind for reason in reasons.values()} <= {"torchscript", "profiler", "other"}
    assert all(test.count("::") == 1 for test in reasons)


def test_two_reasons_for_a_test_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "reasons.toml"
    file.write_text('[[reason]]\nkind = "other"\nwhy = "so"\ntests = ["A::one", "A::one"]\n')
    with pytest.raises(ValueError, match=r"reasons\.toml: A::one has two reasons"):
        read_reasons(file)


def test_what_was_written_down_tells_what_is_left_to_do(tmp_path: Path) -> None:
    file = tmp_path / "ours.jsonl"
    assert read(file) == {}
    file.write_text(
        '["A::good", "hung", ""]\n["A::good", "passed", ""]\n'
        '["A::late", "hung", ""]\n["A::late", "passed", ""]\n["A::late", "failed", "at the end"]\n'
        '["A::gone", "hung", ""]\n'
        '["A::bad", "hung", ""]\n["A::bad", "failed", "1"]\n["A::bad", "hung", ""]\n'
    )
    told = read(file)
    assert told == {
        "A::good": [("passed", "")],
        "A::late": [("failed", "at the end")],
        "A::gone": [("hung", "")],
        "A::bad": [("failed", "1"), ("hung", "")],
    }
    assert {test for test, tries in told.items() if is_done(tries)} == {"A::good", "A::bad"}
    assert not is_done([])

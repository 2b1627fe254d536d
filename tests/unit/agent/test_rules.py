"""Which failures lead to a restart, and the pause before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.rules import (
    RestartBackoff,
    RestartRules,
    Ruling,
    describe_failure,
    parse_backoff,
    parse_causes,
    parse_duration,
)
from holdfast.errors import UsageError
from holdfast.process.outcome.failure import Failure
from holdfast.process.spec import Exit
from tests.unit.agent.stories import failure


def one(**fields: Any) -> Failure:
    return replace(failure(), **fields)


CASES: list[tuple[dict[str, Any], str]] = [
    ({"exit": Exit(3)}, "3"),
    ({"exit": Exit(-11)}, "SIGSEGV"),
    ({"error_type": "ValueError"}, "ValueError"),
    ({"error_type": "torch.OutOfMemoryError"}, "OutOfMemoryError"),
    ({"error_type": "torch.OutOfMemoryError"}, "torch.OutOfMemoryError"),
    ({"kind": "oom", "exit": Exit(-9)}, "oom"),
    ({"kind": "oom", "exit": Exit(-9)}, "SIGKILL"),
    ({"kind": "stall", "exit": Exit(75)}, "stall"),
]


@pytest.mark.parametrize(("fields", "cause"), CASES)
def test_a_cause_names_a_failure(fields: dict[str, Any], cause: str) -> None:
    found = one(**fields)
    assert RestartRules(only=(cause,)).judge(found, ()) == Ruling(True)
    given_up = Ruling(False, f"no restart after {cause}: giving up")
    assert RestartRules(never=("77", cause)).judge(found, ()) == given_up
    assert RestartRules(only=(cause,), never=(cause,)).judge(found, ()) == given_up  # RU-1


def test_where_some_causes_are_named_all_others_end_the_job() -> None:  # RU-2
    rules = RestartRules(only=("SIGSEGV", "oom"))
    expected = Ruling(False, "restarts only after SIGSEGV, oom: giving up")
    assert rules.judge(one(), ()) == expected
    assert RestartRules().judge(one(), ()) == Ruling(True)
    assert RestartRules(never=("2",)).judge(one(), ()) == Ruling(True)


def test_a_stall_is_nothing_else_whatever_became_of_the_worker() -> None:
    assert RestartRules(never=("75",)).judge(one(kind="stall", exit=Exit(75)), ()).restart


def test_the_same_failure_at_the_same_step_ends_the_job() -> None:  # RU-3
    rules, found = RestartRules(same_max=3), one(error_type="ValueError", step=7)
    same, other = describe_failure(found), "ValueError at step 8"
    assert rules.compared == 2
    assert rules.judge(found, (same,)).restart
    assert rules.judge(found, (same, other)).restart
    assert rules.judge(found, (other, same)).restart
    reason = "the same failure at step 7 3 times in a row: giving up"
    assert rules.judge(found, (same, same)) == Ruling(False, reason, 3)
    silent = one()
    reason = "the same failure 3 times in a row: giving up"
    assert rules.judge(silent, (describe_failure(silent),) * 2) == Ruling(False, reason, 3)
    assert RestartRules().compared == 0


def test_what_makes_failures_the_same() -> None:
    assert describe_failure(one(exit=Exit(-9))) == "killed by SIGKILL at step -1"
    assert describe_failure(one(kind="oom", step=2)) == "oom at step 2"
    assert len(describe_failure(one(error_type="x" * 500))) == 200


@given(st.text(max_size=20), st.integers(1, 1000), st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_pause_is_equal_on_all_nodes_and_has_bounds(
    run: str, failures: int, first: float, more: float
) -> None:  # RU-4, RU-5
    backoff = RestartBackoff(first, first + more)
    pause_s = backoff.pause_s(run, failures)
    assert pause_s == RestartBackoff(first, first + more).pause_s(run, failures)
    assert first / 2 <= pause_s <= first + more


def test_pauses_double_and_differ_between_jobs() -> None:
    backoff = RestartBackoff(1.0, 8.0)
    pauses = [backoff.pause_s("job", failures) for failures in (1, 2, 3, 4, 5, 2000)]
    for pause_s, whole in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True):
        assert whole / 2 <= pause_s <= whole
    assert backoff.pause_s("job", 1) != backoff.pause_s("another", 1)
    assert RestartBackoff().pause_s("job", 1) == 0.0


def test_flags_are_read() -> None:
    assert parse_causes(" 1, SIGSEGV ,oom,,1") == ("1", "SIGSEGV", "oom")
    assert parse_causes("") == ()
    assert [parse_duration(text) for text in ("90", "1.5s", "10m", "1h")] == [90, 1.5, 600, 3600]
    assert parse_backoff("2s") == RestartBackoff(2.0, 60.0)
    assert parse_backoff("2m") == RestartBackoff(120.0, 120.0)
    assert parse_backoff("2s:5m") == RestartBackoff(2.0, 300.0)


MUST = "must be an exit code, SIGNAME, an exception class, oom or stall"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", f"cause '0': {MUST}"),
        ("256", f"cause '256': {MUST}"),
        ("oom,SIGNONE", f"cause 'SIGNONE': {MUST}"),
        ("a b", f"cause 'a b': {MUST}"),
        ("a..b", f"cause 'a..b': {MUST}"),
        ("x" * 201, f"cause '{'x' * 79}"),
    ],
)
def test_wrong_causes(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_causes(text)
    assert str(caught.value).startswith(why)


def test_other_wrong_values() -> None:
    for same_max in (1, 101, "3", True):
        with pytest.raises(UsageError, match="must be a whole number from 2 to 100"):
            RestartRules(same_max=same_max)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cause 7: must be"):
        RestartRules(only=(7,))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'soon' must be a time such as 90s"):
        parse_duration("soon")
    with pytest.raises(UsageError, match="restart backoff 5 to 2 seconds"):
        parse_backoff("5s:2s")

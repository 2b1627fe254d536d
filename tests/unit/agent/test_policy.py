"""The restart budget counts the failures of the job, in its life or in a window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.policy import RestartBudget, parse_restarts
from holdfast.errors import UsageError

SECONDS = st.floats(0, 1e9)


@pytest.mark.parametrize(
    ("count", "restart", "left", "reason"),
    [
        (1, True, 2, "failure 1 of the job, 3 restarts are allowed: restarting"),
        (3, True, 0, "failure 3 of the job, 3 restarts are allowed: restarting"),
        (4, False, 0, "failure 4 of the job, 3 restarts are allowed: giving up"),
    ],
)
def test_a_job_is_given_up_when_its_restarts_are_used(
    count: int, restart: bool, left: int, reason: str
) -> None:
    """RB-1, RB-5."""
    verdict = RestartBudget(3).decide(count, (), 0.0)
    assert (verdict.restart, verdict.left, verdict.reason) == (restart, left, reason)


def test_the_reason_counts_as_people_do() -> None:
    """RB-5."""
    assert "no restart is allowed: giving up" in RestartBudget(0).decide(1, (), 0.0).reason
    assert "1 restart is allowed: restarting" in RestartBudget(1).decide(1, (), 0.0).reason
    assert (
        RestartBudget(2, 90.0).decide(7, (1.0, 50.0, 100.0), 100.0).reason
        == "failure 7 of the job, 2 within 90 s, 2 restarts are allowed: restarting"
    )


def test_old_failures_are_forgotten() -> None:
    """RB-2."""
    budget = RestartBudget(2, 60.0)
    assert budget.decide(3, (0.0, 10.0, 20.0), 20.0).restart is False
    # At second 60 the failure at second 0 is no longer one of the last 60 seconds.
    assert budget.decide(3, (0.0, 10.0, 60.0), 60.0).restart is True
    assert budget.decide(3, (0.1, 10.0, 60.0), 60.0).restart is False


def test_clocks_that_disagree_hide_no_failure() -> None:
    """RB-3."""
    budget = RestartBudget(0, 60.0)
    assert budget.decide(1, (1.0,), 1e6).restart is False
    assert budget.decide(1, (), 1e6).restart is False
    assert RestartBudget(1, 60.0).decide(2, (500.0, 10.0), 10.0).restart is False


def test_times_that_are_not_known_count_if_they_may_be_recent() -> None:
    """RB-4."""
    budget = RestartBudget(3, 60.0)
    assert budget.decide(9, (98.0, 99.0, 100.0), 100.0).restart is False
    assert budget.decide(9, (1.0, 99.0, 100.0), 100.0).restart is True


@given(limit=st.integers(0, 20), count=st.integers(1, 40), times=st.lists(SECONDS), now=SECONDS)
def test_without_a_window_only_the_count_decides(
    limit: int, count: int, times: list[float], now: float
) -> None:
    """RB-1."""
    verdict = RestartBudget(limit).decide(count, tuple(times), now)
    assert verdict.restart is (count <= limit)
    assert verdict.left == max(0, limit - count)


@given(
    limit=st.integers(0, 5),
    window=st.floats(0.1, 100),
    gaps=st.lists(st.floats(0, 50), min_size=1, max_size=30),
)
def test_a_job_never_restarts_more_often_than_the_window_allows(
    limit: int, window: float, gaps: list[float]
) -> None:
    """RB-2: judged by counting again, over the whole life of a job."""
    failures: list[float] = []
    for gap in gaps:
        failures.append((failures[-1] if failures else 0.0) + gap)
        now = failures[-1]
        expected = len([time for time in failures if now - time < window])
        budget = RestartBudget(limit, window)
        for known in (failures, failures[-(limit + 1) :]):
            verdict = budget.decide(len(failures), tuple(known), now)
            assert verdict.restart is (expected <= limit)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("0", RestartBudget(0)),
        ("3", RestartBudget(3)),
        ("3/60s", RestartBudget(3, 60.0)),
        ("3/5m", RestartBudget(3, 300.0)),
        ("3/1h", RestartBudget(3, 3600.0)),
        ("10/0.5h", RestartBudget(10, 1800.0)),
    ],
)
def test_what_people_write(text: str, budget: RestartBudget) -> None:
    assert parse_restarts(text) == budget


@pytest.mark.parametrize(
    "text",
    ["", "-1", "x", "3/", "3/60", "3/60d", "/60s", "3 / 60s", "3/1e3s", "٣", "3\n", "1" * 5000],
)
def test_what_is_no_budget_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="must be like 3, 3/60s") as caught:
        parse_restarts(text)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(UsageError, match="must be more than 0 seconds"):
        parse_restarts("3/0s")


@pytest.mark.parametrize("number", [-1, True, 1.0, "1", None])
def test_a_number_that_counts_nothing_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match="max restarts"):
        RestartBudget(number)


@pytest.mark.parametrize("window", [0, -1.0, float("nan"), float("inf"), True, "60"])
def test_a_window_that_is_none_is_refused(window: float) -> None:
    with pytest.raises(UsageError, match="window of restarts"):
        RestartBudget(1, window)

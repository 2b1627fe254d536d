"""Trying again: the delays, and what is refused, in the seed's words."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rpc.client.retry_policy import DELAY_MAX_S, RetryPolicy


def test_the_delays_grow_until_it_gives_up() -> None:
    policy = RetryPolicy()
    delays = [policy.delay(tried) for tried in range(1, 7)]
    assert delays == [1.0, 1.5, 2.25, 3.375, 5.0625, None]


def test_unbounded_retries_go_on_with_the_last_delay() -> None:
    policy = RetryPolicy(max_retries=2, delay_s=1.0, backoff=2.0)
    assert [policy.unbounded_delay(tried) for tried in (1, 2, 3, 9)] == [1.0, 2.0, 2.0, 2.0]
    assert RetryPolicy(max_retries=0).unbounded_delay(7) == 1.0
    assert RetryPolicy(max_retries=0).delay(1) is None


def test_no_delay_is_endless() -> None:
    assert RetryPolicy(max_retries=100_000).delay(100_000) == DELAY_MAX_S
    assert RetryPolicy(max_retries=100_000, backoff=1, delay_s=1e9).delay(5) == DELAY_MAX_S


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_retries": -1}, "maxRetries cannot be negative."),
        ({"backoff": 0.99}, "maxRetries cannot be exponentially decaying."),
        ({"backoff": float("nan")}, "maxRetries cannot be exponentially decaying."),
        ({"delay_s": -0.1}, "rpcRetryDuration cannot be negative."),
        ({"max_retries": 1.5}, "max_retries 1.5: must be a whole number"),
        ({"max_retries": True}, "max_retries True: must be a whole number"),
        ({"delay_s": "1"}, "delay_s '1': must be a number"),
        ({"backoff": None}, "backoff None: must be a number"),
        ({"try_s": 0}, "try_s 0: must be more than 0 seconds, or None"),
        ({"try_s": "1"}, "try_s '1': must be more than 0 seconds, or None"),
        ({"try_s": float("nan")}, "try_s nan: must be more than 0 seconds, or None"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        RetryPolicy(**values)
    assert str(caught.value) == text


def test_a_try_may_have_a_limit() -> None:
    assert RetryPolicy().try_s is None
    assert RetryPolicy(try_s=0.5).try_s == 0.5


def test_the_error_text_after_the_last_try() -> None:
    assert RetryPolicy(max_retries=3).exhausted() == (
        "The RPC has not succeeded after the specified number of max retries (3)."
    )

"""Ranks as people write and read them."""

from __future__ import annotations

import pytest

from holdfast.control.ranks import check_ranks, name_ranks, parse_rank_list
from holdfast.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("3", (3,)), ("0,3,5-7", (0, 3, 5, 6, 7)), (" 2 , 1-2", (1, 2)), ("0-4095", range(4096))],
)
def test_ranks_are_read(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_rank_list(text) == tuple(ranks)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be like 0,3,5-7"),
        ("a", "must be like"),
        ("-1", "must be like"),
        ("1,", "must be like"),
        ("1234567", "must be like"),
        ("3-1", "'3-1' must go up, by 4096 at most"),
        ("0-4096", "'0-4096' must go up"),
        ("0-4000,5000-5999", "5001 of them, at most 4096 are allowed"),
    ],
)
def test_what_are_no_ranks(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rank_list(text)
    assert str(caught.value).startswith(f"ranks {text!r}: ")
    assert why in str(caught.value)


def test_ranks_in_words() -> None:
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([2, 0, 1, 5, 5]) == "ranks 0-2,5"
    assert name_ranks([1, 0]) == "ranks 0-1"
    assert name_ranks([0, 2]) == "ranks 0,2"


def test_a_rank_that_is_not_there_is_told() -> None:
    check_ranks([1], [0, 1])
    with pytest.raises(UsageError, match="^ranks 2,9: not on this machine; here are ranks 0-1$"):
        check_ranks([1, 2, 9], [0, 1])
    with pytest.raises(UsageError, match="^rank 2: not on this machine; no worker runs here now$"):
        check_ranks([2], [])

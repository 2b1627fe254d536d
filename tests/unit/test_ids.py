"""Ids are narrow, typed, and made from randomness that is given."""

from __future__ import annotations

import random

import pytest

from holdfast.errors import UsageError
from holdfast.ids import RUN_ID_MAX, new_session_id, new_token, run_id


@pytest.mark.parametrize("text", ["a", "A.b_c-9", "0", "a" * RUN_ID_MAX, "_", "-"])
def test_good_run_ids(text: str) -> None:
    assert run_id(text) == text


@pytest.mark.parametrize(
    "text", ["", "a" * (RUN_ID_MAX + 1), "a/b", "a b", "ä", "a\n", "\0", "../x"]
)
def test_bad_run_ids_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(UsageError, match="letters, digits, '.', '_' and '-' are allowed") as caught:
        run_id(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [None, 7, b"job", ["a"]])
def test_a_run_id_is_text(given: object) -> None:
    with pytest.raises(
        UsageError, match=r"^run id .*: must be a str, not (NoneType|int|bytes|list)$"
    ):
        run_id(given)  # type: ignore[arg-type]


def test_a_run_id_is_no_hidden_file() -> None:
    with pytest.raises(UsageError, match="must not begin with '.'"):
        run_id(".hidden")


def test_a_huge_run_id_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        run_id("x" * 1_000_000)
    assert len(str(caught.value)) < 300


def test_session_ids_are_63_bits_and_never_0() -> None:
    rng = random.Random(1)
    ids = {new_session_id(rng) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(0 < number < 1 << 63 for number in ids)
    assert max(ids) >= 1 << 62


def test_tokens_are_short_names() -> None:
    rng = random.Random(1)
    tokens = {new_token(rng) for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(len(token) == 8 and run_id(token) == token.lower() for token in tokens)
    assert len(new_token(rng, 20)) == 20


def test_the_same_seed_makes_the_same_ids() -> None:
    one, two = random.Random(7), random.Random(7)
    assert new_session_id(one) == new_session_id(two)
    assert new_token(one) == new_token(two)

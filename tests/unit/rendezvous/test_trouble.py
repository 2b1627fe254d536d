"""A store that does not answer, moment by moment."""

from __future__ import annotations

import pytest

from holdfast.errors import StoreBusy, StoreFull, StoreUnavailable
from holdfast.rendezvous.trouble import RETRY_MAX_S, RETRY_MIN_S, Trouble, borne_s


def test_a_store_that_answers_is_no_trouble() -> None:
    trouble = Trouble(15.0)
    assert (trouble.retry_at, trouble.patience(100.0)) == (None, 15.0)


def test_pauses_grow_up_to_a_second_until_it_answers() -> None:
    trouble = Trouble(1e6)
    pauses = []
    for _ in range(12):
        assert not trouble.failed(100.0, 100.0, renewal=False)
        pauses.append((trouble.retry_at or 0.0) - 100.0)
    assert pauses[:3] == pytest.approx([RETRY_MIN_S, 2 * RETRY_MIN_S, 4 * RETRY_MIN_S])
    assert pauses[-1] == pytest.approx(RETRY_MAX_S)
    trouble.answered(renewal=False)
    assert trouble.retry_at is None
    trouble.failed(200.0, 200.0, renewal=False)
    assert trouble.retry_at == pytest.approx(200.0 + RETRY_MIN_S)


def test_it_is_lost_a_lease_after_it_fell_silent() -> None:
    """What counts is when the first operation began; its failure alone proves nothing."""
    trouble = Trouble(15.0)
    assert not trouble.failed(0.0, 100.0, renewal=False)
    assert trouble.failed(100.1, 100.2, renewal=False)
    trouble.answered(renewal=False)
    assert not trouble.failed(0.0, 5.0, renewal=False)
    assert not trouble.failed(5.1, 14.9, renewal=False)
    assert trouble.failed(14.9, 15.0, renewal=False)


def test_an_operation_does_not_outlast_the_silence_that_is_borne() -> None:
    trouble = Trouble(15.0)
    trouble.failed(100.0, 104.0, renewal=False)
    assert trouble.patience(104.0) == pytest.approx(11.0)
    assert trouble.patience(120.0) == RETRY_MAX_S


def test_a_store_that_is_held_up_is_borne_with_for_longer() -> None:
    trouble = Trouble(lease_s=15.0)
    assert not trouble.failed(began=0.0, now=5.0, bear_s=600.0, renewal=False)
    assert not trouble.failed(began=5.0, now=599.0, bear_s=600.0, renewal=False)
    assert trouble.failed(began=599.0, now=600.0, bear_s=600.0, renewal=False)


def test_a_full_store_is_lost_at_the_second_try() -> None:
    trouble = Trouble(lease_s=15.0)
    assert not trouble.failed(began=0.0, now=0.1, bear_s=0.0, renewal=False)
    assert trouble.retry_at == pytest.approx(0.1 + RETRY_MIN_S)
    trouble.answered(renewal=True)
    assert trouble.failed(began=0.15, now=0.16, bear_s=0.0, renewal=False)


def test_how_long_a_store_is_borne_with_depends_on_how_it_fails() -> None:
    errors = (StoreBusy("held up"), StoreFull("full"), StoreUnavailable("silent"))
    assert [borne_s(error, 600.0) for error in errors] == [600.0, 0.0, None]


def test_a_renewal_that_is_answered_does_not_end_other_trouble() -> None:
    trouble = Trouble(lease_s=15.0)
    assert not trouble.failed(began=0.0, now=1.0, renewal=False)
    trouble.answered(renewal=True)
    assert trouble.retry_at is not None
    assert trouble.failed(began=14.0, now=15.0, renewal=False)


def test_a_renewal_that_is_answered_ends_the_trouble_of_renewals() -> None:
    trouble = Trouble(lease_s=15.0)
    assert not trouble.failed(began=0.0, now=1.0, renewal=True)
    trouble.answered(renewal=True)
    assert trouble.retry_at is None
    trouble.answered(renewal=False)
    assert not trouble.failed(began=20.0, now=21.0, renewal=True)


def test_a_silence_ends_when_nothing_is_wanted_of_the_store_any_more() -> None:
    trouble = Trouble(lease_s=15.0)
    assert not trouble.failed(began=0.0, now=1.0, renewal=False)
    trouble.over()
    assert trouble.retry_at is None
    assert not trouble.failed(began=20.0, now=21.0, renewal=False)

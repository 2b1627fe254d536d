"""A node's lease: when to renew it, and until when it is surely held."""

from __future__ import annotations

import math

import pytest

from holdfast.ids import LeaseId
from holdfast.rendezvous.own_lease import MARGIN, ROOM_MIN_S, OwnLease
from holdfast.store.ops import Get, Lease, LeaseKeep


def test_hl1_a_lease_is_counted_from_the_sending_of_its_grant() -> None:
    own = OwnLease(keep_alive_s=5.0)
    (held,) = own.granted(Lease(LeaseId(1), 15.0), sent_at=100.0, now=103.0)
    assert held.kill_at == pytest.approx(100.0 + 15.0 * (1 - MARGIN))
    assert held.stop_at == pytest.approx(100.0 + 15.0 * (1 - 2 * MARGIN))


def test_hl1_a_renewal_moves_both_moments_by_its_own_sending() -> None:
    own = OwnLease(keep_alive_s=5.0)
    (first,) = own.granted(Lease(LeaseId(1), 15.0), sent_at=100.0, now=100.0)
    (second,) = own.renewed(sent_at=105.0, now=109.0)
    assert second.kill_at - first.kill_at == pytest.approx(5.0)
    assert second.stop_at - first.stop_at == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("answered_at", "keep_at"),
    [
        (100.0, 105.0),
        (102.0, 107.0),
        (104.0, 108.0),
        (110.0, 111.0),
        (112.0, 112.0),
        (113.0, 113.0),
    ],
)
def test_hl4_a_late_answer_does_not_put_the_next_renewal_off(
    answered_at: float, keep_at: float
) -> None:
    own = OwnLease(keep_alive_s=5.0)
    (held,) = own.granted(Lease(LeaseId(1), 15.0), sent_at=100.0, now=answered_at)
    assert held.stop_at == 112.0
    assert own.keep_at == keep_at
    own.renewed(sent_at=100.0, now=answered_at)
    assert own.keep_at == keep_at


def test_a_store_that_grants_more_is_believed() -> None:
    (held,) = OwnLease(0.5).granted(Lease(LeaseId(1), 2.0), sent_at=0.0, now=0.0)
    assert held.kill_at == pytest.approx(1.8)


def test_a_lost_lease_is_none() -> None:
    own = OwnLease(5.0)
    own.granted(Lease(LeaseId(1), 15.0), 0.0, 0.0)
    assert own.lease == Lease(LeaseId(1), 15.0)
    own.lost(in_round=False)
    assert own.lease is None
    assert len(own.granted(Lease(LeaseId(2), 15.0), 20.0, 20.0)) == 1
    assert own.asked() == []  # nothing was kept back


def test_hl3_a_new_lease_gives_no_time_to_the_round_before_it() -> None:
    own = OwnLease(keep_alive_s=5.0)
    own.granted(Lease(LeaseId(1), 15.0), sent_at=0.0, now=0.0)
    own.lost(in_round=True)
    assert own.granted(Lease(LeaseId(2), 10.0), sent_at=20.0, now=20.0) == []
    assert own.renewed(sent_at=25.0, now=25.0) == []
    (kept_back,) = own.asked()
    assert kept_back.kill_at == pytest.approx(34.0)
    assert own.asked() == []
    (held,) = own.renewed(sent_at=30.0, now=30.0)
    assert held.kill_at == pytest.approx(39.0)


def test_hl3_a_node_that_asks_before_it_has_a_new_lease_hears_of_that_one() -> None:
    own = OwnLease(keep_alive_s=5.0)
    own.granted(Lease(LeaseId(1), 15.0), sent_at=0.0, now=0.0)
    own.lost(in_round=True)
    assert own.asked() == []
    assert len(own.granted(Lease(LeaseId(2), 10.0), sent_at=20.0, now=20.0)) == 1


def test_hl2_an_operation_ends_before_a_renewal_is_due() -> None:
    own = OwnLease(keep_alive_s=5.0)
    assert own.room_s(Get("k"), 0.0) == math.inf  # there is nothing to renew
    own.granted(Lease(LeaseId(1), 15.0), sent_at=0.0, now=0.0)
    assert own.room_s(Get("k"), 2.0) == 3.0
    assert own.room_s(Get("k"), 7.0) == ROOM_MIN_S
    assert own.room_s(LeaseKeep(LeaseId(1)), 7.0) == math.inf

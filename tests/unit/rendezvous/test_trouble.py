"""A store that does not answer, moment by moment."""

from __future__ import annotations

import pytest

from holdfast.errors import LeaseLost, StoreBusy, StoreFull, StoreUnavailable, UsageError
from holdfast.rendezvous.effects import (
    Counted,
    LeaseHeld,
    RoundOver,
    StoreLost,
)
from holdfast.rendezvous.trouble import RETRY_MAX_S, RETRY_MIN_S, Trouble, borne_s
from holdfast.store.ops import (
    CompareSet,
    Guarded,
    LeaseKeep,
)
from tests.unit.rendezvous.by_hand import (
    KEYS,
    NO_STORE,
    RULES,
    WALL,
    Driven,
    World,
    pair,
)


def test_a_store_that_answers_is_no_trouble() -> None:
    trouble = Trouble(15.0)
    assert (trouble.retry_at, trouble.op_limit_s(100.0)) == (None, 15.0)


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
    assert trouble.op_limit_s(104.0) == pytest.approx(11.0)
    assert trouble.op_limit_s(120.0) == RETRY_MAX_S


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


# In a node.


class TestTrouble:
    def test_it_tries_again_and_goes_on(self) -> None:
        world, _a, b = pair()
        b.cut = NO_STORE
        world.run(RULES.keep_alive_s + 3)
        assert b.take(StoreLost) == []
        tries = len(b.ops)
        b.cut = None
        world.run(RETRY_MAX_S)
        assert len(b.ops) > tries
        world.run(3 * RULES.lease_s)
        assert not b.take(RoundOver)
        assert not b.take(StoreLost)

    def test_a_lost_store_ends_everything_within_a_lease(self) -> None:
        """ND-6."""
        world, _a, b = pair()
        b.cut = NO_STORE
        world.run(RULES.keep_alive_s + RULES.lease_s + 2 * RETRY_MAX_S)
        assert b.the(StoreLost).reason == "the store cannot be used: nobody there"
        b.node.ask("", world.now)
        world.run(60)
        assert b.node.take_effects() == []

    def test_a_store_that_takes_no_writes_is_lost_though_it_renews_leases(self) -> None:
        """ND-6, HL-2: such as etcd over its quota. No write keeps the lease from being renewed."""
        world, _a, b = pair()
        b.hold = CompareSet
        b.node.finish(world.now)
        b.step()
        began = world.now
        while not b.take(StoreLost):
            if b.held is not None:
                op_limit_s = b.node.op_limit_s(world.now)
                assert op_limit_s <= RULES.keep_alive_s
                world.now += op_limit_s
                b.held = None
                b.node.failed(NO_STORE, world.now)
            else:
                world.now = max(world.now, b.node.next_wake() or world.now)
                b.node.tick(world.now)
            b.step()
        assert world.now - began <= RULES.lease_s + RULES.keep_alive_s + 2 * RETRY_MAX_S
        assert len(b.take(LeaseHeld)) >= 2
        assert not b.take(RoundOver)

    def test_an_operation_that_failed_and_is_needed_no_more_is_forgotten(self) -> None:
        """It is not tried again, so it must not wake the node without end."""
        world, a, b = pair()
        b.hold = Guarded
        b.node.count_failure(world.now, WALL)
        b.step()
        a.node.count_failure(world.now, WALL)  # the same failure: one of them counts
        world.settle()
        b.held = b.hold = None
        b.node.failed(NO_STORE, world.now)
        b.step()  # it hears that the failure is counted
        failed_at, world.now = world.now, b.node.next_wake() or 0.0
        b.node.tick(world.now)
        b.step()
        assert b.the(Counted).failures.count == 1
        assert b.node.next_wake() == failed_at + RULES.keep_alive_s
        # A silence that begins much later is a new one.
        world.run(2 * RULES.lease_s)
        b.cut = NO_STORE
        b.node.finish(world.now)
        world.run(RULES.keep_alive_s)
        assert b.take(StoreLost) == []

    def test_a_store_that_another_process_holds_up_is_waited_for(self) -> None:
        """ND-6: within the join timeout, and then the process is named."""
        world, _a, b = pair()
        b.cut = StoreBusy("f: process 7 (python, stopped) holds its lock")
        world.run(RULES.lease_s + RULES.keep_alive_s + 2 * RETRY_MAX_S)
        assert not b.take(StoreLost)
        b.cut = None
        world.run(RETRY_MAX_S)
        assert not b.take(StoreLost)
        b.cut = StoreBusy("f: process 7 (python, stopped) holds its lock")
        world.run(RULES.keep_alive_s + RULES.join_s + 2 * RETRY_MAX_S)
        assert "process 7 (python, stopped)" in b.the(StoreLost).reason

    def test_a_store_that_hangs_is_lost_a_lease_after_it_fell_silent(self) -> None:
        """ND-6: what counts is when the operation began, not when it failed."""
        world, _a, b = pair()
        b.hold = LeaseKeep
        world.run(RULES.keep_alive_s)
        silent_at = world.now
        while not b.take(StoreLost):
            assert b.held is not None
            world.now += b.node.op_limit_s(world.now)
            b.held, b.cut = None, NO_STORE
            b.node.failed(NO_STORE, world.now)
            b.hold, b.cut = LeaseKeep, None
            world.now = b.node.next_wake() or world.now
            b.node.tick(world.now)
            b.step()
        assert world.now - silent_at <= RULES.lease_s + 2 * RETRY_MAX_S

    def test_a_node_that_was_stopped_within_an_operation_tries_again(self) -> None:
        world, _a, b = pair()
        b.hold = LeaseKeep
        world.run(RULES.keep_alive_s)
        world.now += 10 * RULES.lease_s
        b.hold = None
        b.node.failed(NO_STORE, world.now)
        world.run(RETRY_MAX_S)
        assert b.take(StoreLost) == []

    def test_an_operation_ends_before_the_wish_does(self) -> None:
        world = World(RULES)
        a = world.add("a")
        assert a.node.op_limit_s(world.now) == RULES.lease_s
        ends = world.now + RULES.join_s
        assert a.node.op_limit_s(ends - 1) == pytest.approx(1)
        assert a.node.op_limit_s(ends) == pytest.approx(0.1)

    def test_a_refusal_is_an_answer(self) -> None:
        """A store that says no is there: earlier silence counts no more."""
        world, _a, b = pair()
        b.hold = LeaseKeep
        world.run(RULES.keep_alive_s)
        for error in (NO_STORE, LeaseLost("gone")):
            b.node.failed(error, world.now)
            b.node.tick(world.now + 1)
        assert b.node._trouble.retry_at is None

    def test_a_closed_store_is_the_end(self) -> None:
        world, _a, b = pair()
        b.cut = UsageError("the store memory:// is closed")
        world.run(RULES.keep_alive_s)
        assert b.the(StoreLost).reason == "the store memory:// is closed"

    @pytest.mark.parametrize(
        ("key", "told"),
        [
            (KEYS.round, "RoundRecord: "),
            (KEYS.progress, "Progress: "),
            (KEYS.leader, "Leader: "),
            (KEYS.failures, "Failures: "),
        ],
    )
    def test_what_is_not_ours_ends_it(self, key: str, told: str) -> None:
        world, _a, b = pair()
        world.put(key, b"junk")
        world.settle()
        lost = b.the(StoreLost)
        assert lost.reason == (f"key {key!r} holds a foreign value: {told}b'junk' is not JSON")

    def test_the_end_is_told_once(self) -> None:
        world = World(RULES)
        a = world.add("a")
        assert a.node.next_wake() is None  # busy
        a.hold = CompareSet
        world.settle()
        world.put(KEYS.round, b"junk")
        world.settle()
        a.node.failed(UsageError("the store is closed"), world.now)
        world.settle()
        assert a.the(StoreLost).reason.startswith("key 'rdzv/job/ctl/round' holds a foreign value")

    def test_a_node_that_was_not_started_wants_nothing(self) -> None:
        node = Driven(World(RULES), "a", RULES, None).node
        assert (node.next_wake(), node.take_effects()) == (None, [])

    def test_unknown_keys_are_left_alone(self) -> None:
        world, a, b = pair()
        world.put(KEYS.control + "more", b"junk")
        world.settle()
        assert a.take(StoreLost) == b.take(StoreLost) == []

    def test_an_unsolicited_answer(self) -> None:
        world, a, _b = pair()
        a.node.done(None, world.now)
        world.settle()
        assert a.node.leading

    def test_an_answer_of_the_wrong_kind(self) -> None:
        world = World(RULES)
        a = world.add("a")
        a.node.take_effects()
        with pytest.raises(UsageError, match="is no result of LeaseGrant"):
            a.node.done("what?", world.now)

"""A reported failure is counted once for each round, and only while that round lasts (ND-4)."""

from __future__ import annotations

from holdfast.ids import RunId
from holdfast.rendezvous.account import Account
from holdfast.rendezvous.effects import Counted
from holdfast.rendezvous.model import Failures, Keys
from holdfast.store.ops import CompareSet, Get, Guarded

KEYS = Keys(RunId("job"))
ROUND = b"the record"
NONE, ONE = Failures(), Failures().plus(3, 9.0)


def reported() -> Account:
    account = Account(KEYS)
    account.report(3, 9.0)
    return account


def test_nothing_to_report() -> None:
    account = Account(KEYS)
    assert account.next_op(3, ROUND, None) is None
    assert account.read(NONE, 3, None) is None


def test_it_is_counted_while_the_round_lasts() -> None:
    account = reported()
    for raw in (None, NONE.encode()):
        op = CompareSet(KEYS.failures, raw, ONE.encode())
        assert account.next_op(3, ROUND, raw) == Guarded(KEYS.round, ROUND, op)
    assert account.next_op(3, ROUND, ONE.encode()) == Counted(3, ONE)
    assert account.next_op(3, ROUND, ONE.encode()) is None


def test_it_is_not_counted_once_the_round_is_over() -> None:
    for number, lasts in ((3, None), (4, ROUND)):
        account = reported()
        assert account.next_op(number, lasts, None) == Get(KEYS.failures)
        assert account.read(NONE, number, lasts) == Counted(3, NONE)
        assert account.next_op(number, lasts, None) is None


def test_what_a_leader_reads_is_no_answer_to_a_report_that_is_to_count() -> None:
    account = reported()
    assert account.read(NONE, 3, ROUND) is None
    assert account.next_op(3, ROUND, ONE.encode()) == Counted(3, ONE)

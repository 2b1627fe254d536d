"""What a callee remembers of calls that may come again."""

from __future__ import annotations

import itertools

import pytest

from holdfast.rpc.server.dedup import DedupTable, DedupVerdict, Waiter
from holdfast.rpc.wire.acknowledgement import encode_acknowledgement
from holdfast.rpc.wire.messages import Buffer, Kind, Message

ME, OTHER = "incarnation-1", "incarnation-2"


def answer(call: int) -> Message:
    return Message(Kind.REPLY, call, b"value")


def asker() -> Waiter:
    return lambda message: None


def test_a_call_runs_once_however_often_it_comes() -> None:  # RC-1, RC-2
    receipts = DedupTable()
    first, second = asker(), asker()
    assert receipts.arrived(ME, 1, first) == (DedupVerdict.RUN, None)
    assert receipts.arrived(ME, 1, second) == (DedupVerdict.WAIT, None)
    assert receipts.answered(ME, 1, answer(1)) == [first, second]
    assert receipts.arrived(ME, 1, asker()) == (DedupVerdict.ANSWERED, answer(1))
    assert receipts.kept() == 1


def test_callers_are_told_apart() -> None:  # RC-1
    receipts = DedupTable()
    assert receipts.arrived(ME, 1, asker())[0] is DedupVerdict.RUN
    assert receipts.arrived(OTHER, 1, asker())[0] is DedupVerdict.RUN


def test_what_the_caller_has_is_forgotten_and_not_run_again() -> None:  # RC-1
    receipts = DedupTable()
    for call in (1, 2):
        receipts.arrived(ME, call, asker())
        receipts.answered(ME, call, answer(call))
    receipts.acknowledged(ME, encode_acknowledgement(2))
    assert receipts.kept() == 1
    assert receipts.arrived(ME, 1, asker()) == (DedupVerdict.FORGOTTEN, None)
    assert receipts.arrived(ME, 2, asker())[0] is DedupVerdict.ANSWERED
    receipts.acknowledged(ME, encode_acknowledgement(1))  # an old note changes nothing
    assert receipts.arrived(ME, 1, asker())[0] is DedupVerdict.FORGOTTEN


def test_an_answer_that_nobody_wants_any_more_is_not_kept() -> None:
    receipts = DedupTable()
    first = asker()
    receipts.arrived(ME, 1, first)
    receipts.acknowledged(ME, encode_acknowledgement(5))  # it gave up
    assert receipts.answered(ME, 1, answer(1)) == [first]
    assert receipts.kept() == 0


def test_a_caller_may_acknowledge_before_it_is_known() -> None:
    receipts = DedupTable()
    receipts.acknowledged(ME, encode_acknowledgement(3))
    assert receipts.arrived(ME, 2, asker())[0] is DedupVerdict.FORGOTTEN
    assert receipts.arrived(ME, 3, asker())[0] is DedupVerdict.RUN


def test_when_too_much_is_kept_new_calls_are_refused() -> None:  # RC-3
    receipts = DedupTable(kept=2)
    receipts.arrived(ME, 1, asker())
    receipts.answered(ME, 1, answer(1))
    assert receipts.arrived(ME, 2, asker())[0] is DedupVerdict.RUN
    assert receipts.arrived(ME, 3, asker()) == (DedupVerdict.FULL, None)
    assert receipts.arrived(ME, 1, asker())[0] is DedupVerdict.ANSWERED
    assert receipts.arrived(ME, 2, asker())[0] is DedupVerdict.WAIT
    assert receipts.arrived(OTHER, 3, asker())[0] is DedupVerdict.RUN
    receipts.acknowledged(ME, encode_acknowledgement(2))
    assert receipts.arrived(ME, 3, asker())[0] is DedupVerdict.RUN


def test_when_too_many_bytes_are_kept_new_calls_are_refused() -> None:  # RC-3
    receipts = DedupTable(kept_bytes=10)
    for call in (1, 2, 3):
        assert receipts.arrived(ME, call, asker())[0] is DedupVerdict.RUN
    receipts.answered(ME, 1, Message(Kind.REPLY, 1, b"four"))
    assert receipts.arrived(ME, 4, asker())[0] is DedupVerdict.RUN
    buffers: list[Buffer] = [bytearray(4), memoryview(b"12345678").cast("L")]
    receipts.answered(ME, 2, Message(Kind.REPLY, 2, b"", buffers))
    assert receipts.arrived(ME, 5, asker()) == (DedupVerdict.FULL, None)
    assert receipts.arrived(OTHER, 5, asker())[0] is DedupVerdict.RUN
    # What ran by then is kept all the same, and everything kept can be had.
    receipts.answered(ME, 3, answer(3))
    for call in (1, 2, 3):
        assert receipts.arrived(ME, call, asker())[0] is DedupVerdict.ANSWERED
    receipts.acknowledged(ME, encode_acknowledgement(3, [1]))
    assert receipts.arrived(ME, 5, asker())[0] is DedupVerdict.RUN  # 4 and 5 bytes are left
    receipts.acknowledged(ME, encode_acknowledgement(4))
    assert receipts.kept() == 0
    receipts.answered(ME, 4, Message(Kind.REPLY, 4, bytes(9)))
    assert receipts.arrived(ME, 6, asker())[0] is DedupVerdict.RUN


def test_calls_that_are_still_open_hold_up_no_others() -> None:
    receipts = DedupTable(kept=3)
    for call in (1, 2, 3):
        receipts.arrived(ME, call, asker())
    for call in (2, 3):
        receipts.answered(ME, call, answer(call))
    receipts.acknowledged(ME, encode_acknowledgement(4, [1]))
    assert receipts.kept() == 0
    assert receipts.arrived(ME, 2, asker())[0] is DedupVerdict.FORGOTTEN
    assert receipts.arrived(ME, 1, asker())[0] is DedupVerdict.WAIT
    assert len(receipts.answered(ME, 1, answer(1))) == 2
    assert receipts.arrived(ME, 1, asker())[0] is DedupVerdict.ANSWERED


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_what_one_note_calls_over_stays_so_in_whatever_order_they_come(
    order: tuple[int, ...],
) -> None:  # RC-1
    notes = [
        encode_acknowledgement(3, [1, 2]),
        encode_acknowledgement(5, [2, 4]),
        encode_acknowledgement(5, [4]),
        encode_acknowledgement(7, [2, 4, 6]),
    ]
    receipts = DedupTable()
    for number in order:
        receipts.acknowledged(ME, notes[number])
    over = [
        receipts.arrived(ME, call, asker())[0] is DedupVerdict.FORGOTTEN for call in range(1, 8)
    ]
    assert over == [True, True, True, False, True, False, False]


def test_nothing_is_kept_of_a_caller_that_is_gone() -> None:
    receipts = DedupTable()
    receipts.arrived(ME, 1, asker())
    receipts.gone(ME)
    assert receipts.answered(ME, 1, answer(1)) == []
    assert receipts.kept() == 0
    receipts.gone(ME)

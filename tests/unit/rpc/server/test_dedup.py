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


def waiter() -> Waiter:
    return lambda message: None


def test_a_call_runs_once_however_often_it_comes() -> None:  # RC-1, RC-2
    table = DedupTable()
    first, second = waiter(), waiter()
    assert table.arrived(ME, 1, first) == (DedupVerdict.RUN, None)
    assert table.arrived(ME, 1, second) == (DedupVerdict.WAIT, None)
    assert table.answered(ME, 1, answer(1)) == [first, second]
    assert table.arrived(ME, 1, waiter()) == (DedupVerdict.ANSWERED, answer(1))
    assert table.kept() == 1


def test_each_caller_has_numbers_of_its_own() -> None:  # RC-1
    table = DedupTable()
    assert table.arrived(ME, 1, waiter())[0] is DedupVerdict.RUN
    assert table.arrived(OTHER, 1, waiter())[0] is DedupVerdict.RUN


def test_an_acknowledged_call_is_forgotten_and_not_run_again() -> None:  # RC-1
    table = DedupTable()
    for call in (1, 2):
        table.arrived(ME, call, waiter())
        table.answered(ME, call, answer(call))
    table.acknowledged(ME, encode_acknowledgement(2))
    assert table.kept() == 1
    assert table.arrived(ME, 1, waiter()) == (DedupVerdict.FORGOTTEN, None)
    assert table.arrived(ME, 2, waiter())[0] is DedupVerdict.ANSWERED
    table.acknowledged(ME, encode_acknowledgement(1))  # an old note changes nothing
    assert table.arrived(ME, 1, waiter())[0] is DedupVerdict.FORGOTTEN


def test_an_answer_that_no_caller_waits_for_is_not_kept() -> None:
    table = DedupTable()
    first = waiter()
    table.arrived(ME, 1, first)
    table.acknowledged(ME, encode_acknowledgement(5))  # it gave up
    assert table.answered(ME, 1, answer(1)) == [first]
    assert table.kept() == 0


def test_a_caller_may_acknowledge_before_it_is_known() -> None:
    table = DedupTable()
    table.acknowledged(ME, encode_acknowledgement(3))
    assert table.arrived(ME, 2, waiter())[0] is DedupVerdict.FORGOTTEN
    assert table.arrived(ME, 3, waiter())[0] is DedupVerdict.RUN


def test_when_too_much_is_kept_new_calls_are_refused() -> None:  # RC-3
    table = DedupTable(kept=2)
    table.arrived(ME, 1, waiter())
    table.answered(ME, 1, answer(1))
    assert table.arrived(ME, 2, waiter())[0] is DedupVerdict.RUN
    assert table.arrived(ME, 3, waiter()) == (DedupVerdict.FULL, None)
    assert table.arrived(ME, 1, waiter())[0] is DedupVerdict.ANSWERED
    assert table.arrived(ME, 2, waiter())[0] is DedupVerdict.WAIT
    assert table.arrived(OTHER, 3, waiter())[0] is DedupVerdict.RUN
    table.acknowledged(ME, encode_acknowledgement(2))
    assert table.arrived(ME, 3, waiter())[0] is DedupVerdict.RUN


def test_when_too_many_bytes_are_kept_new_calls_are_refused() -> None:  # RC-3
    table = DedupTable(kept_bytes=10)
    for call in (1, 2, 3):
        assert table.arrived(ME, call, waiter())[0] is DedupVerdict.RUN
    table.answered(ME, 1, Message(Kind.REPLY, 1, b"four"))
    assert table.arrived(ME, 4, waiter())[0] is DedupVerdict.RUN
    buffers: list[Buffer] = [bytearray(4), memoryview(b"12345678").cast("L")]
    table.answered(ME, 2, Message(Kind.REPLY, 2, b"", buffers))
    assert table.arrived(ME, 5, waiter()) == (DedupVerdict.FULL, None)
    assert table.arrived(OTHER, 5, waiter())[0] is DedupVerdict.RUN
    # What ran by then is kept all the same, and everything kept can be had.
    table.answered(ME, 3, answer(3))
    for call in (1, 2, 3):
        assert table.arrived(ME, call, waiter())[0] is DedupVerdict.ANSWERED
    table.acknowledged(ME, encode_acknowledgement(3, [1]))
    assert table.arrived(ME, 5, waiter())[0] is DedupVerdict.RUN  # 4 and 5 bytes are left
    table.acknowledged(ME, encode_acknowledgement(4))
    assert table.kept() == 0
    table.answered(ME, 4, Message(Kind.REPLY, 4, bytes(9)))
    assert table.arrived(ME, 6, waiter())[0] is DedupVerdict.RUN


def test_calls_that_are_still_open_hold_up_no_others() -> None:
    table = DedupTable(kept=3)
    for call in (1, 2, 3):
        table.arrived(ME, call, waiter())
    for call in (2, 3):
        table.answered(ME, call, answer(call))
    table.acknowledged(ME, encode_acknowledgement(4, [1]))
    assert table.kept() == 0
    assert table.arrived(ME, 2, waiter())[0] is DedupVerdict.FORGOTTEN
    assert table.arrived(ME, 1, waiter())[0] is DedupVerdict.WAIT
    assert len(table.answered(ME, 1, answer(1))) == 2
    assert table.arrived(ME, 1, waiter())[0] is DedupVerdict.ANSWERED


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_an_acknowledged_call_stays_so_in_whatever_order_the_notes_arrive(
    order: tuple[int, ...],
) -> None:  # RC-1
    notes = [
        encode_acknowledgement(3, [1, 2]),
        encode_acknowledgement(5, [2, 4]),
        encode_acknowledgement(5, [4]),
        encode_acknowledgement(7, [2, 4, 6]),
    ]
    table = DedupTable()
    for number in order:
        table.acknowledged(ME, notes[number])
    over = [table.arrived(ME, call, waiter())[0] is DedupVerdict.FORGOTTEN for call in range(1, 8)]
    assert over == [True, True, True, False, True, False, False]


def test_nothing_is_kept_of_a_caller_that_is_gone() -> None:
    table = DedupTable()
    table.arrived(ME, 1, waiter())
    table.gone(ME)
    assert table.answered(ME, 1, answer(1)) == []
    assert table.kept() == 0
    table.gone(ME)

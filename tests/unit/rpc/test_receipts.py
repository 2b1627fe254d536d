"""What a callee remembers of calls that may come again."""

from __future__ import annotations

from holdfast.rpc.messages import Kind, Message
from holdfast.rpc.receipts import Asker, Receipts, Verdict

ME, OTHER = "incarnation-1", "incarnation-2"


def answer(call: int) -> Message:
    return Message(Kind.REPLY, call, b"value")


def asker() -> Asker:
    return lambda message: None


def test_a_call_runs_once_however_often_it_comes() -> None:  # RC-1, RC-2
    receipts = Receipts()
    first, second = asker(), asker()
    assert receipts.arrived(ME, 1, first) == (Verdict.RUN, None)
    assert receipts.arrived(ME, 1, second) == (Verdict.WAIT, None)
    assert receipts.answered(ME, 1, answer(1)) == [first, second]
    assert receipts.arrived(ME, 1, asker()) == (Verdict.ANSWERED, answer(1))
    assert receipts.kept() == 1


def test_callers_are_told_apart() -> None:  # RC-1
    receipts = Receipts()
    assert receipts.arrived(ME, 1, asker())[0] is Verdict.RUN
    assert receipts.arrived(OTHER, 1, asker())[0] is Verdict.RUN


def test_what_the_caller_has_is_forgotten_and_not_run_again() -> None:  # RC-1
    receipts = Receipts()
    for call in (1, 2):
        receipts.arrived(ME, call, asker())
        receipts.answered(ME, call, answer(call))
    receipts.acknowledged(ME, 2)
    assert receipts.kept() == 1
    assert receipts.arrived(ME, 1, asker()) == (Verdict.FORGOTTEN, None)
    assert receipts.arrived(ME, 2, asker())[0] is Verdict.ANSWERED
    receipts.acknowledged(ME, 1)  # an old note changes nothing
    assert receipts.arrived(ME, 1, asker())[0] is Verdict.FORGOTTEN


def test_an_answer_that_nobody_wants_any_more_is_not_kept() -> None:
    receipts = Receipts()
    first = asker()
    receipts.arrived(ME, 1, first)
    receipts.acknowledged(ME, 5)  # it gave up
    assert receipts.answered(ME, 1, answer(1)) == [first]
    assert receipts.kept() == 0


def test_a_caller_may_acknowledge_before_it_is_known() -> None:
    receipts = Receipts()
    receipts.acknowledged(ME, 3)
    assert receipts.arrived(ME, 2, asker())[0] is Verdict.FORGOTTEN
    assert receipts.arrived(ME, 3, asker())[0] is Verdict.RUN


def test_when_too_much_is_kept_new_calls_are_refused() -> None:  # RC-3
    receipts = Receipts(kept=2)
    receipts.arrived(ME, 1, asker())
    receipts.answered(ME, 1, answer(1))
    assert receipts.arrived(ME, 2, asker())[0] is Verdict.RUN
    assert receipts.arrived(ME, 3, asker()) == (Verdict.FULL, None)
    assert receipts.arrived(ME, 1, asker())[0] is Verdict.ANSWERED
    assert receipts.arrived(ME, 2, asker())[0] is Verdict.WAIT
    assert receipts.arrived(OTHER, 3, asker())[0] is Verdict.RUN
    receipts.acknowledged(ME, 2)
    assert receipts.arrived(ME, 3, asker())[0] is Verdict.RUN


def test_nothing_is_kept_of_a_caller_that_is_gone() -> None:
    receipts = Receipts()
    receipts.arrived(ME, 1, asker())
    receipts.gone(ME)
    assert receipts.answered(ME, 1, answer(1)) == []
    assert receipts.kept() == 0
    receipts.gone(ME)

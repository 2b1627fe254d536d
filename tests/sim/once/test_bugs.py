"""The simulation of repeated calls is worth something: it finds bugs planted in what it runs.

Each bug changes one decision of `client/retrying.py`, `answering.py` or `server/dedup.py`, as a
careless edit might; its comment says which guarantee that breaks. A bug must be found within its
number of seeds, by the promise that it breaks.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rpc.client.calls import RetryTable
from holdfast.rpc.client.retrying import RetriedCall, RetryingCalls
from holdfast.rpc.server import dedup
from holdfast.rpc.server.dedup import DedupTable, DedupVerdict
from holdfast.rpc.server.dispatcher import Dispatcher
from holdfast.rpc.wire.acknowledgement import decode_acknowledgement, encode_acknowledgement
from holdfast.rpc.wire.messages import Message
from tests.sim.once.sim import draw_plan, run_seed
from tests.sim.planted import PlantedBugs

BUGS = PlantedBugs(run_seed, draw_plan, may_raise=True)
bug = BUGS.bug


# What has run is known.


@bug("O1", 20)
def what_comes_again_runs_again(patch: pytest.MonkeyPatch) -> None:  # RC-1, AN-2
    patch.setattr(DedupTable, "arrived", lambda self, caller, call, asker: (DedupVerdict.RUN, None))


@bug("O1", 50)
def what_runs_is_not_known_to_run(patch: pytest.MonkeyPatch) -> None:  # RC-1
    real = DedupTable.arrived

    def arrived(self: DedupTable, caller: str, call: int, asker: Any) -> Any:
        verdict, kept = real(self, caller, call, asker)
        return (DedupVerdict.RUN if verdict is DedupVerdict.WAIT else verdict), kept

    patch.setattr(DedupTable, "arrived", arrived)


@bug("O1", 50)
def what_was_acknowledged_is_forgotten_altogether(patch: pytest.MonkeyPatch) -> None:  # RC-1
    def acknowledged(self: DedupTable, caller: str, note: Message) -> None:
        known = self._callers.setdefault(caller, dedup._Caller())
        for call in [call for call in known.answers if call < note.call]:
            del known.answers[call]

    patch.setattr(DedupTable, "acknowledged", acknowledged)


@bug("O1", 200)
def an_old_acknowledgement_opens_what_is_over(patch: pytest.MonkeyPatch) -> None:  # RC-1
    def acknowledged(self: DedupTable, caller: str, note: Message) -> None:
        known = self._callers.setdefault(caller, dedup._Caller())
        known.below, known.still = note.call, frozenset(decode_acknowledgement(note))
        for call in [call for call in known.answers if known.is_over(call)]:
            known.size -= known.answers.pop(call).size()

    patch.setattr(DedupTable, "acknowledged", acknowledged)


# Every call is answered.


@bug("L1", 200)
def who_asks_again_while_it_runs_hears_nothing(patch: pytest.MonkeyPatch) -> None:  # RC-2
    real = DedupTable.arrived

    def arrived(self: DedupTable, caller: str, call: int, asker: Any) -> Any:
        verdict, kept = real(self, caller, call, asker)
        if verdict is DedupVerdict.WAIT:
            self._callers[caller].running[call] = []
        return verdict, kept

    patch.setattr(DedupTable, "arrived", arrived)


@bug("O2", 50)
def what_is_open_is_acknowledged(patch: pytest.MonkeyPatch) -> None:  # IS-5
    patch.setattr(
        "holdfast.rpc.client.calls.encode_acknowledgement",
        lambda below, still: encode_acknowledgement(below),
    )


@bug("L1", 20)
def nothing_is_acknowledged(patch: pytest.MonkeyPatch) -> None:  # IS-5
    patch.setattr(RetryTable, "acknowledge", lambda self, to: None)


# Workers that are gone.


@bug("O4", 200)
def who_was_given_up_is_served(patch: pytest.MonkeyPatch) -> None:  # AN-4
    real = Dispatcher.handle

    def handle(self: Dispatcher, caller: Any, message: Message, later: Any) -> Message | None:
        dead, self._dead = self._dead, {}
        try:
            return real(self, caller, message, later)
        finally:
            self._dead = dead

    patch.setattr(Dispatcher, "handle", handle)


@bug("L1", 100)
def who_waits_for_one_that_is_gone_is_not_told(patch: pytest.MonkeyPatch) -> None:  # IS-2
    patch.setattr(RetryingCalls, "lost", lambda self, to, error: None)


# Time.


@bug("O3", 50)
def a_try_is_made_after_the_deadline(patch: pytest.MonkeyPatch) -> None:  # IS-3
    for name in ("_failed", "make"):
        real = getattr(RetriedCall, name)

        def late(self: RetriedCall, *args: Any, real: Any = real) -> Any:
            at, self.at = self.at, float("inf")
            try:
                return real(self, *args)
            finally:
                self.at = at

        patch.setattr(RetriedCall, name, late)


@bug("O2", 50)
def a_late_answer_completes_it_again(patch: pytest.MonkeyPatch) -> None:  # IS-1
    real = RetriedCall._try_ended

    def ended(self: RetriedCall, tried: int, answer: Any) -> None:
        complete: Any = self.__dict__.setdefault("first", self._complete_by)
        if self._complete_by is None and isinstance(answer, Message):
            complete(self.message, self, answer)
        else:
            real(self, tried, answer)

    patch.setattr(RetriedCall, "_try_ended", ended)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS.check(name, monkeypatch)

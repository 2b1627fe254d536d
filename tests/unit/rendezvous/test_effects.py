"""The union of effects: what is a notice, and what is done."""

from __future__ import annotations

import typing

from holdfast.rendezvous import effects
from holdfast.rendezvous.effects import Effect, Follow, Notice, Perform


def test_an_effect_is_done_or_told() -> None:
    told, every = set(typing.get_args(Notice)), set(typing.get_args(Effect))
    assert every == told | {Perform, Follow}
    kinds = set(effects.__all__) - {"Effect", "Notice", "disagreement"}
    assert {kind.__name__ for kind in every} == kinds

"""The audited load: what its verdict says, and a small run of the real thing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.faults.plan import Action, Moment, Rule, parse_plan
from tests.soak import soak as module
from tests.soak.soak import PLAN, Account, Audit, Room, main, soak

CALLS, WORKERS = 80_000, 4
RULES = parse_plan(PLAN.format(seed=0)).rules
ROOM = Room(30 * 1024, 20, 30)


def account(**more: Any) -> Account:
    each = CALLS // WORKERS
    given: dict[str, Any] = {
        "sums": {"succeeded": each - 10, "failed": 10},
        "fired": [round(each * rule.p) for rule in RULES],
        "warm": ROOM,
        "end": ROOM,
        "odd": [],
    }
    return Account(**given | more)


def audit(last: Account) -> Audit:
    return Audit(CALLS, [account()] * (WORKERS - 1) + [last])


def is_possible(action: Action, moment: Moment) -> bool:
    try:
        Rule(action=action, moment=moment)
    except UsageError:
        return False
    return True


def test_the_plan_has_every_fault_at_every_moment_at_which_it_can_happen() -> None:
    possible = [pair for pair in itertools.product(Action, Moment) if is_possible(*pair)]
    assert sorted((rule.action, rule.moment) for rule in RULES) == sorted(possible)


def test_a_run_is_clean_if_every_call_is_accounted_for() -> None:
    clean = audit(account())
    assert (clean.broken(), clean.short()) == ([], [])
    assert "80000 calls: 79960 succeeded, 40 failed, 0 lost, 0 repeated" in str(clean)
    assert str(clean).endswith("\nclean")


@pytest.mark.parametrize("name", ["lost", "repeated", "mismatched", "unresolved", "odd"])
def test_one_call_that_is_not_accounted_for_breaks_it(name: str) -> None:
    broken = audit(account(sums={"succeeded": 19_999, name: 1}, odd=["call 5: ValueError"]))
    assert broken.broken() == [f"1 calls {name}"]
    assert "worker3: call 5: ValueError" in str(broken)
    assert str(broken).endswith("\nBROKEN")


def test_calls_that_fail_too_often_break_it() -> None:
    for succeeded, wrong in ((14_000, []), (13_999, ["only 55996 calls succeeded"])):
        failed = CALLS // WORKERS - succeeded
        told = account(sums={"succeeded": succeeded, "failed": failed})
        assert Audit(CALLS, [told] * WORKERS).broken() == wrong


@pytest.mark.parametrize(
    ("grown", "within"),
    [
        (replace(ROOM, threads=ROOM.threads + 2 * WORKERS), True),
        (replace(ROOM, threads=ROOM.threads + 2 * WORKERS + 1), False),
        (replace(ROOM, descriptors=ROOM.descriptors + 2 * WORKERS + 1), False),
        (replace(ROOM, rss_kib=ROOM.rss_kib + 8 * 1024), True),
        (replace(ROOM, rss_kib=ROOM.rss_kib + 8 * 1024 + 15_000 // 16 + 1), False),
    ],
)
def test_a_worker_must_not_grow(grown: Room, within: bool) -> None:
    found = audit(account(end=grown)).broken()
    assert found == ([] if within else [f"worker3 grew: {ROOM}; at the end {grown}"])


def test_a_run_in_which_one_rule_fired_too_rarely_is_invalid_and_not_clean() -> None:
    fired = account().fired
    for number, rule in enumerate(RULES):
        few = [0 if n == number else count for n, count in enumerate(fired)]
        quiet = Audit(CALLS, [account(fired=few)] * WORKERS)
        assert quiet.short() == [f"{rule}: fired 0 times"]
        assert str(quiet).endswith("\ninvalid")


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (account(), 0),
        (account(sums={"succeeded": 19_999, "lost": 1}), 1),
        (account(fired=[0] * len(RULES)), 3),
    ],
)
def test_the_exit_code_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], last: Account, code: int
) -> None:
    result = Audit(CALLS, [last] * WORKERS) if code == 3 else audit(last)
    monkeypatch.setattr(module, "soak", lambda calls, workers, seed: result)
    assert main(["--calls", "10", "--seed", "5"]) == code
    assert capsys.readouterr().out == f"seed 5\n{result}\n"


def test_calls_through_a_faulty_transport_run_once() -> None:
    made = soak(2000, 4, 3)
    assert made.calls == 2000
    assert made.broken() == [], str(made)
    assert sum(sum(one.fired) for one in made.accounts) > 20

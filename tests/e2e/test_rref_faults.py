"""References that travel through faults, with calls and with their answers: nothing is left."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.faults.plan import Action, parse_plan
from holdfast.faults.transport import FaultyTransport
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.rref import until_gone
from holdfast.rpc.rref.rref import RRef, make_rref
from tests.unit.rpc.world import agents

WITHIN_S = 120.0
CALLS = 100
TIMEOUT_S = 0.3
PLAN = """
    seed {}
    drop PYTHON_CALL p=0.05
    drop reply PYTHON_CALL p=0.05
    reset running PYTHON_CALL p=0.04
    corrupt reply PYTHON_CALL p=0.04
    delay PYTHON_CALL p=0.1 seconds=0.4
    duplicate PYTHON_CALL p=0.05
    reorder PYTHON_CALL p=0.05
    drop RREF_UNREAD,RREF_USER_DELETE,RREF_FORK_REQUEST,RREF_CHILD_ACCEPT p=0.02
    fail PYTHON_REMOTE_CALL p=0.05
"""

here: dict[int, Agent] = {}
kept: dict[int, list[RRef[Any]]] = {}
lock = threading.Lock()


def swap(number: int, given: list[RRef[Any]], fails: bool) -> list[RRef[Any]]:
    """Keep what is given, or not, and return some of what is kept, and something new."""
    if fails:
        raise KeyError("on purpose")
    mine = here[number].rrefs
    with lock:
        shelf = kept[number] = [*kept[number], *given][-20:]
        back = shelf[:2]
    new = make_rref(mine, mine.own("new"), mine.me, mine.incarnation, None)
    return [new, *back]


def work(agent: Agent, dice: random.Random, seen: Counter[str]) -> None:
    """Make references, pass them on, fetch and drop them; nearly anything may fail."""
    held: list[RRef[Any]] = []
    for _ in range(CALLS):
        to, given, fails = dice.randrange(3), held[:2], dice.random() < 0.2
        dice.shuffle(held)
        try:
            match dice.randrange(5):
                case 0:
                    held.append(agent.remote(to, list, ((1, 2),), timeout=TIMEOUT_S))
                case 1 if held:
                    held.pop().to_here(TIMEOUT_S)
                case 2:
                    held += agent.call(to, swap, (to, given, fails), timeout=TIMEOUT_S)
                case _:
                    call = agent.call_async(to, swap, (to, given, fails), timeout=TIMEOUT_S)
                    held += call.wait()
            seen["done"] += 1
        except Exception as error:
            seen[type(error).__name__] += 1
        del held[15:]


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_left_of_references_that_travel_through_faults(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(until_gone.UntilGone, "try_s", 0.5)
    plans = [parse_plan(PLAN.format(seed * 3 + number)) for number in range(3)]
    seen: Counter[str] = Counter()
    with agents(*(FaultyTransport(plan) for plan in plans)) as made:
        here.update(enumerate(made))
        kept.update((number, []) for number in here)
        workers = []
        for number, agent in here.items():
            agent.rrefs._retry = RetryPolicy(max_retries=5, delay_s=0.05, backoff=1.5)
            dice = random.Random(f"{seed} {number}")
            workers.append(threading.Thread(target=work, args=(agent, dice, seen)))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        here.clear()
        kept.clear()
        deadline = Deadline.after(WITHIN_S)
        for agent in made:
            left = agent.rrefs
            empty = False
            while not empty:
                assert not deadline.passed(), left.counts()
                gc.collect()  # errors keep what was under way; those of late calls come only now
                empty = left.wait_empty(deadline.sooner(0.5).remaining)
    fired = sum((Counter(plan.fired()) for plan in plans), Counter[Action]())
    assert seen["done"] > CALLS, seen
    assert seen["CallTimedOut"] > 5, seen
    assert fired[Action.RESET] + fired[Action.CORRUPT] > 1, fired
    assert sum(fired.values()) > 20, fired

"""Audited load: workers call each other through a faulty transport, and each call is accounted for.

    python -m holdfast.testing.rpcsoak --calls 200000 [--workers 8] [--seed 1]

Each call has a number. Who runs it writes that down; who gets an answer checks it. At the end every
caller compares its own account with those of the callees:

    lost         a call that succeeded here and was not run there
    repeated     a call that was run more than once
    mismatched   an answer to another call
    unresolved   a call that neither succeeded nor failed

All must be 0. Fewer faults than planned make the run invalid, which is not the same as passed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from holdfast.faults.plan import parse_plan
from holdfast.rpc.api import rpc_sync
from holdfast.rpc.current import current_agent
from holdfast.rpc.retry import RetryPolicy
from holdfast.testing.rpcworld import run_workers

__all__ = ["Audit", "main", "soak"]

PLAN = """
seed {seed}
drop PYTHON_CALL p=0.01
drop reply PYTHON_CALL p=0.01
duplicate PYTHON_CALL p=0.01
delay PYTHON_CALL p=0.02 seconds=0.005
reset PYTHON_CALL p=0.001
reset running PYTHON_CALL p=0.001
"""
THREADS = 4
POLICY = RetryPolicy(max_retries=20, delay_s=0.01, backoff=1.2, try_s=0.5)
CALL_TIMEOUT_S = 30.0

# What this worker has run: how often, by caller and number.
_ran: dict[int, Counter[int]] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Audit:
    """What came of it, over all workers."""

    calls: int
    succeeded: int
    failed: int
    lost: int
    repeated: int
    mismatched: int
    unresolved: int
    faults: dict[str, int]

    @property
    def clean(self) -> bool:
        """Whether every call is accounted for."""
        return not (self.lost or self.repeated or self.mismatched or self.unresolved)

    @property
    def valid(self) -> bool:
        """Whether enough went wrong on the way for this to mean something."""
        planned = parse_plan(PLAN.format(seed=0)).rules
        floor = self.calls * min(rule.p for rule in planned) / 4
        fired = self.faults
        return all(fired.get(rule.action, 0) >= floor for rule in planned)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        verdict = "invalid" if not self.valid else "clean" if self.clean else "BROKEN"
        return (
            f"{verdict}: {self.calls} calls, {self.succeeded} succeeded, {self.failed} failed, "
            f"{self.lost} lost, {self.repeated} repeated, {self.mismatched} mismatched, "
            f"{self.unresolved} unresolved; faults: {faults}"
        )


def soak(calls: int, workers: int, seed: int) -> Audit:
    """Make so many calls in all, and audit them."""
    each = -(-calls // workers)
    told = run_workers(
        _work,
        each,
        workers,
        seed,
        workers=workers,
        backend="faulty",
        options={"plan": PLAN.format(seed=seed)},
    )
    sums: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for account, fired in told.values():
        sums.update(account)
        faults.update(fired)
    return Audit(calls=each * workers, faults=dict(faults), **{name: sums[name] for name in _NAMES})


_NAMES = ("succeeded", "failed", "lost", "repeated", "mismatched", "unresolved")


def _work(rank: int, calls: int, workers: int, seed: int) -> tuple[dict[str, int], dict[str, int]]:
    """Call others, be called by them, and audit our own calls."""
    dice = random.Random(seed * 1000 + rank)
    targets = [dice.randrange(workers) for _ in range(calls)]
    outcome: dict[int, str] = {}
    threads = [
        threading.Thread(
            target=_call_some, args=(rank, range(one, calls, THREADS), targets, outcome)
        )
        for one in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    account: Counter[str] = Counter(outcome.values())
    account["unresolved"] = calls - len(outcome)
    for worker in range(workers):
        ran: Counter[int] = rpc_sync(worker, _ran_for, (rank,), timeout=60, retries=POLICY)
        mine = [number for number, target in enumerate(targets) if target == worker]
        account["lost"] += sum(outcome[n] == "succeeded" and not ran[n] for n in mine)
        account["repeated"] += sum(ran[number] > 1 for number in mine)
    plan: Any = current_agent().transport
    return dict(account), {str(name): count for name, count in plan.fired().items()}


def _call_some(rank: int, numbers: range, targets: list[int], outcome: dict[int, str]) -> None:
    for number in numbers:
        try:
            answer = rpc_sync(
                targets[number],
                _serve,
                (rank, number),
                timeout=CALL_TIMEOUT_S,
                retries=POLICY,
            )
        except RuntimeError:  # every error of a call is one
            outcome[number] = "failed"
        else:
            right = answer == (rank, number, number * number)
            outcome[number] = "succeeded" if right else "mismatched"


def _serve(caller: int, number: int) -> tuple[int, int, int]:
    with _lock:
        _ran.setdefault(caller, Counter())[number] += 1
    return caller, number, number * number


def _ran_for(caller: int) -> Counter[int]:
    with _lock:
        return Counter(_ran.get(caller, Counter()))


def main(argv: list[str] | None = None) -> int:
    """Run it from the command line: 0 clean, 1 broken, 3 invalid."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.rpcsoak")
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args(argv)
    seed = int.from_bytes(os.urandom(3)) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)  # noqa: T201  # it is a program
    audit = soak(given.calls, given.workers, seed)
    print(audit)  # noqa: T201
    return (0 if audit.clean else 1) if audit.valid else 3


if __name__ == "__main__":
    sys.exit(main())

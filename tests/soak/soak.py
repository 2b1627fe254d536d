"""Audited load: workers call each other through a faulty transport, and each call is accounted for.

    python -m tests.soak --calls 200000 [--workers 8] [--seed 1]

Each call has a number. The callee writes that down; the caller checks the answer. At the end every
caller compares its own account with those of the callees:

    lost         a call that succeeded here and was not run there
    repeated     a call that was run more than once
    mismatched   an answer to another call
    unresolved   a call that neither succeeded nor failed
    odd          a call that failed otherwise than by time or a lost connection

All must be 0, and nearly all calls must succeed. Some calls wait for their answer, some are under
way together and retried, some are under way together and tried once only.

Each worker measures its memory, threads and descriptors after a quarter of the calls, and again at
the end, both times without calls: they must not have grown with the calls in between.

A rule of the plan that fired less often than it was to makes the run invalid, which is not the same
as passed.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.errors import CallTimedOut, PeerLost, TimeoutExpired
from holdfast.faults.plan import parse_plan
from holdfast.rpc.api import rpc_async, rpc_sync
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.current import current_agent
from holdfast.testing.rpcworld import run_workers
from tests.waiting import holds_in_time

__all__ = ["PLAN", "Account", "Audit", "Room", "main", "soak"]

# Everything that a plan can do, at every moment at which it can. What costs the run time is rare.
PLAN = """
seed {seed}
fail PYTHON_CALL p=0.005
drop PYTHON_CALL p=0.004
drop reply PYTHON_CALL p=0.004
delay PYTHON_CALL p=0.01 seconds=0.002
delay reply PYTHON_CALL p=0.01 seconds=0.002
duplicate PYTHON_CALL p=0.01
reorder PYTHON_CALL p=0.01
corrupt PYTHON_CALL p=0.0005
corrupt reply PYTHON_CALL p=0.0005
reset PYTHON_CALL p=0.0005
reset reply PYTHON_CALL p=0.0005
reset running PYTHON_CALL p=0.0005
partition PYTHON_CALL p=0.0005 seconds=0.05
"""
THREADS = 4
BATCH = 32
POLICY = RetryPolicy(max_retries=30, delay_s=0.01, backoff=1.2, try_s=0.2)
CALL_TIMEOUT_S = 60.0
ONE_TRY_S = 0.5
WARM = 0.25
"""The part of the calls after which nothing may grow any more."""
WITHIN_S = 120.0
"""How long one worker waits until the others have come as far."""

ENOUGH = 0.7
"""The part of the calls that succeeds at least. Only those that are tried once may fail, a quarter
of all; where all of them take too long, the machine is slow, and nothing is broken."""
LUCK = 4.0
"""By how many standard deviations the dice may be below what is expected of them."""
RSS_MARGIN_KIB = 8 * 1024
RSS_BYTES_PER_CALL = 64
"""What is kept of a call is much more than this."""
ODD_SHOWN = 3
MORE_FOR_EACH_PEER = 2
"""Threads and descriptors that come and go with each of the others."""

_SUCCEEDED, _FAILED, _MISMATCHED, _ODD = 1, 2, 3, 4
_OFTEN = 255
_WRONG = ("lost", "repeated", "mismatched", "unresolved", "odd")

# What this worker has run: how often, by caller and number. Then how far the others are, and what
# its own calls raised that they should not have.
_ran: dict[int, bytearray] = {}
_reached: Counter[str] = Counter()
_changed = threading.Condition()
_odd: list[str] = []


@dataclass(frozen=True, slots=True)
class Room:
    """What a worker takes."""

    rss_kib: int
    threads: int
    descriptors: int

    def __str__(self) -> str:
        mib = self.rss_kib / 1024
        return f"{mib:.1f} MiB, {self.threads} threads, {self.descriptors} descriptors"


@dataclass(frozen=True, slots=True)
class Account:
    """What one worker has to say: of its calls, of the faults it made, and of the room it took."""

    sums: dict[str, int]
    fired: list[int]
    warm: Room
    end: Room
    odd: list[str]
    """The first of the errors that should not have been."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What came of it, over all workers."""

    calls: int
    accounts: list[Account]

    def sum(self, name: str) -> int:
        """Return how many calls had this end."""
        return sum(account.sums.get(name, 0) for account in self.accounts)

    def broken(self) -> list[str]:
        """Return what went wrong; empty if every call is accounted for and nothing grew."""
        wrong = [f"{count} calls {name}" for name in _WRONG if (count := self.sum(name))]
        if self.sum("succeeded") < self.calls * ENOUGH:
            wrong.append(f"only {self.sum('succeeded')} calls succeeded")
        more = MORE_FOR_EACH_PEER * len(self.accounts)
        # Of each worker: it makes as many calls as it runs for others, about.
        later = self.calls / len(self.accounts) * (1 - WARM)
        rss_more = RSS_MARGIN_KIB + RSS_BYTES_PER_CALL * later / 1024
        for rank, account in enumerate(self.accounts):
            warm, end = account.warm, account.end
            if (
                end.threads > warm.threads + more
                or end.descriptors > warm.descriptors + more
                or end.rss_kib > warm.rss_kib + rss_more
            ):
                wrong.append(f"worker{rank} grew: {warm}; at the end {end}")
        return wrong

    def short(self) -> list[str]:
        """Return the rules that fired less often than planned: then the run means nothing."""
        found = []
        for number, rule in enumerate(parse_plan(PLAN.format(seed=0)).rules):
            fired = sum(account.fired[number] for account in self.accounts)
            expected = self.calls * rule.p
            if fired < max(1.0, expected - LUCK * expected**0.5):
                found.append(f"{rule}: fired {fired} times")
        return found

    def __str__(self) -> str:
        rules = parse_plan(PLAN.format(seed=0)).rules
        totals = [sum(fired) for fired in zip(*(a.fired for a in self.accounts), strict=True)]
        lines = [f"{total:8} {rule}" for rule, total in zip(rules, totals, strict=True)]
        for rank, account in enumerate(self.accounts):
            lines.append(f"worker{rank}: {account.warm}; at the end {account.end}")
            lines += [f"worker{rank}: {error}" for error in account.odd]
        names = ("succeeded", "failed", *_WRONG)
        lines.append(
            f"{self.calls} calls: " + ", ".join(f"{self.sum(name)} {name}" for name in names)
        )
        short, broken = self.short(), self.broken()
        lines += [f"too few faults: {rule}" for rule in short]
        lines += [f"BROKEN: {what}" for what in broken]
        lines.append("BROKEN" if broken else "invalid" if short else "clean")
        return "\n".join(lines)


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
    return Audit(each * workers, [told[rank] for rank in range(workers)])


def _work(rank: int, calls: int, workers: int, seed: int) -> Account:
    """Call others, be called by them, and audit our own calls."""
    dice = random.Random(seed * 1000 + rank)
    targets = bytes(dice.randrange(workers) for _ in range(calls))
    outcome = bytearray(calls)
    _call_all(rank, range(int(calls * WARM)), targets, outcome)
    warm = _measure(rank, workers, "warm")
    _call_all(rank, range(int(calls * WARM), calls), targets, outcome)
    end = _measure(rank, workers, "end")
    sums = {
        "succeeded": outcome.count(_SUCCEEDED),
        "failed": outcome.count(_FAILED),
        "mismatched": outcome.count(_MISMATCHED),
        "unresolved": outcome.count(0),
        "odd": outcome.count(_ODD),
        "lost": 0,
        "repeated": 0,
    }
    for worker in range(workers):
        ran: bytes = rpc_sync(worker, _ran_for, (rank, calls), None, CALL_TIMEOUT_S, POLICY)
        mine = [number for number in range(calls) if targets[number] == worker]
        sums["lost"] += sum(outcome[n] == _SUCCEEDED and not ran[n] for n in mine)
        sums["repeated"] += sum(ran[number] > 1 for number in mine)
    transport: Any = current_agent().transport
    return Account(sums, transport.plan.counts(), warm, end, _odd[:ODD_SHOWN])


def _call_all(rank: int, numbers: range, targets: bytes, outcome: bytearray) -> None:
    """Make these calls, by several threads; return when all have ended."""
    batches = [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)]
    threads = [
        threading.Thread(
            target=_call_some, args=(rank, one, batches[one::THREADS], targets, outcome)
        )
        for one in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _call_some(
    rank: int, first: int, batches: Sequence[range], targets: bytes, outcome: bytearray
) -> None:
    for way, batch in enumerate(batches, first):
        if way % 4 == 0:
            for number in batch:
                call = partial(_call, rpc_sync, CALL_TIMEOUT_S, POLICY, rank, targets[number])
                outcome[number] = _judge(rank, number, partial(call, number))
            continue
        timeout, retries = (ONE_TRY_S, None) if way % 4 == 1 else (CALL_TIMEOUT_S, POLICY)
        futures = [
            _call(rpc_async, timeout, retries, rank, targets[number], number) for number in batch
        ]
        for number, future in zip(batch, futures, strict=True):
            outcome[number] = _judge(rank, number, future.wait)


def _call(
    how: Callable[..., Any],
    timeout: float,
    retries: RetryPolicy | None,
    rank: int,
    to: int,
    number: int,
) -> Any:
    return how(to, _serve, (rank, number), timeout=timeout, retries=retries)


def _judge(rank: int, number: int, wait: Callable[[], Any]) -> int:
    try:
        answer = wait()
    except (CallTimedOut, PeerLost):
        return _FAILED
    except Exception as error:
        _odd.append(f"call {number}: {type(error).__name__}: {error}")
        return _ODD
    return _SUCCEEDED if answer == (rank, number, number * number) else _MISMATCHED


def _measure(rank: int, workers: int, when: str) -> Room:
    """Return what this worker uses without calls; no worker goes on before all know."""
    _meet(rank, workers, f"{when}: all is called")
    gc.collect()
    seen = [_room()]

    def quiet() -> bool:
        seen.append(_room())
        last = seen[-6:]
        return len(last) == 6 and len({(room.threads, room.descriptors) for room in last}) == 1

    holds_in_time(quiet, WITHIN_S, every_s=0.1)  # what was late, or reset, ends by itself
    _meet(rank, workers, f"{when}: all is measured")
    return seen[-1]


def _room() -> Room:
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    kib = pages * os.sysconf("SC_PAGE_SIZE") // 1024
    return Room(kib, threading.active_count(), len(os.listdir("/proc/self/fd")))


def _meet(rank: int, workers: int, where: str) -> None:
    """Wait until all workers are there."""
    for worker in range(workers):
        rpc_sync(worker, _reach, (where,), None, CALL_TIMEOUT_S, POLICY)
    with _changed:
        if not _changed.wait_for(lambda: _reached[where] >= workers, WITHIN_S):
            raise TimeoutExpired(f"{where}: {_reached[where]} of {workers} workers came")


def _reach(where: str) -> None:
    with _changed:
        _reached[where] += 1
        _changed.notify_all()


def _serve(caller: int, number: int) -> tuple[int, int, int]:
    with _changed:
        ran = _ran.setdefault(caller, bytearray())
        if number >= len(ran):
            ran.extend(bytes(number + 1 - len(ran)))
        ran[number] = min(_OFTEN, ran[number] + 1)
    return caller, number, number * number


def _ran_for(caller: int, calls: int) -> bytes:
    with _changed:
        return bytes(_ran.get(caller, b"")).ljust(calls, b"\0")


def main(argv: list[str] | None = None) -> int:
    """Run it from the command line: 0 clean, 1 broken, 3 invalid."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args(argv)
    seed = int.from_bytes(os.urandom(3)) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)  # it is a program
    audit = soak(given.calls, given.workers, seed)
    print(audit)
    return 1 if audit.broken() else 3 if audit.short() else 0

"""Whether forks of a process that has imported are as good as interpreters that each import.

A fork shares what the imports made. That does only if they made nothing that a fork breaks, or that
each worker has its own of: one thread, no further descriptor, no device, no child process, no
timer, no generator of random numbers that was seeded or used. These generators are seeded anew in a
fork; a seed that a module sets while it is imported is meant for each worker, and would be lost.

Loaded by standby_parent_main.py. Nothing here may import holdfast: see child.py. Neither numpy nor
torch is imported: they are looked at if the imports brought them.
"""

from __future__ import annotations

import os
import random
import signal
import sys

TYPE_CHECKING = False  # the real one would cost the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["descriptors", "random_state", "seed_anew", "why_apart"]

_SEED_LEAST = 1 << 32  # of torch, if it was drawn; smaller ones are given by programs


def random_state() -> object:
    """Return the state of Python's own generator."""
    return random.getstate()


def why_apart(open_before: Iterable[int], drawn_before: object) -> str:
    """Return why forks of this process would not be as interpreters that imported; else ""."""
    try:
        return (
            _threads()
            or _opened(set(open_before))
            or _devices()
            or _children()
            or _timers()
            or _drawn(drawn_before)
        )
    except Exception as error:  # /proc is not there, or a library is another than is known here
        return f"{type(error).__name__}: {error}"


def descriptors() -> set[int]:
    """Return the open descriptors of this process."""
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {number for number in found if _is_open(number)}  # without that of the listing


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _threads() -> str:
    count = len(os.listdir("/proc/self/task"))
    return f"{count} threads" if count > 1 else ""


def _opened(before: set[int]) -> str:
    more = descriptors() - before
    return f"open: {', '.join(os.readlink(f'/proc/self/fd/{one}') for one in more)}" if more else ""


def _devices() -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.partition(" /")[2]
            if path.startswith("dev/") and not path.startswith(("dev/zero", "dev/shm/")):
                return f"mapped: /{path.strip()}"
    return ""


def _children() -> str:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    return "child processes"


def _timers() -> str:
    kinds = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return "a timer" if any(signal.getitimer(kind) != (0.0, 0.0) for kind in kinds) else ""


def _drawn(before: object) -> str:
    """Return which generator of random numbers the imports seeded or used; "" if none."""
    if random_state() != before:
        return "random was seeded or used"
    if "numpy.random" in sys.modules:
        given = sys.modules["numpy.random"]
        seeds, _ = given.get_state(legacy=False), given.set_bit_generator  # which old ones lack
        fresh = given.mtrand._rand._bit_generator.seed_seq
        if fresh is None or not _same_numpy(given.RandomState(given.MT19937(fresh)), seeds):
            return "numpy.random was seeded or used"
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        seed = torch.initial_seed()
        fresh = torch.Generator().manual_seed(seed).get_state()
        if seed < _SEED_LEAST or not torch.equal(fresh, torch.get_rng_state()):
            return "torch was seeded or used"
    return ""


def _same_numpy(one: Any, seeds: Any) -> bool:
    of_one = one.get_state(legacy=False)
    keys = of_one["state"]["key"] == seeds["state"]["key"]
    return bool(keys.all()) and of_one["state"]["pos"] == seeds["state"]["pos"]


def seed_anew() -> None:
    """Draw new seeds after a fork; Python itself does so for `random`."""
    if "numpy.random" in sys.modules:
        given = sys.modules["numpy.random"]
        given.set_bit_generator(given.MT19937())
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()

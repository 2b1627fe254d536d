"""What runs first in a worker that was forked: it becomes as a process that was started afresh.

The other way to begin is child.py, whose parts this uses.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from holdfast.process.start.child import leave, reset_signals, settle, tie_to, work_until_end

__all__ = ["run_forked"]


def run_forked(
    order: Mapping[str, str],
    environment: Mapping[str, str],
    streams: tuple[int | None, int | None],
    begun: Callable[[], None],
    work: Callable[[], None],
) -> NoReturn:
    """Run `work` in a process that was just forked, then end it as any function's ends.

    `begun` is called as soon as the process is a group of its own.
    """
    code = 1
    try:
        os.setsid()
        tie_to(int(order["parent"]))
        reset_signals()
        begun()
        _forget_parent()
        os.environ.clear()
        os.environ.update(environment)
        _redirect(streams)
        settle(order)
        code = work_until_end(work, order["folder"])
    finally:
        leave(code)


def _redirect(streams: tuple[int | None, int | None]) -> None:
    """Let stdout and stderr go to these descriptors, unbuffered, and close them; None stays."""
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        stream = streams[number - 1]
        if stream is not None:
            os.dup2(stream, number)
            file = open(number, "w", encoding="utf-8", errors=errors, newline="\n", closefd=False)  # noqa: SIM115
            file.reconfigure(write_through=True)
            setattr(sys, name, file)
    for stream in {*streams} - {None, 0, 1, 2}:
        os.close(stream)  # type: ignore[arg-type]


def _forget_parent() -> None:
    """Drop what the parent meant to do at its own end, and the children that it has."""
    vars(atexit)["_clear"]()
    if "multiprocessing.util" in sys.modules:
        from multiprocessing import process, util

        vars(process)["_children"].clear()
        vars(util)["_finalizer_registry"].clear()
        vars(util)["_run_after_forkers"]()
        atexit.register(vars(util)["_exit_function"])

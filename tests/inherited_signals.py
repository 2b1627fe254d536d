"""Signals that the process which started this one ignores, and that a test must be able to send.

A process inherits which signals are ignored. nohup ignores SIGHUP, a shell without job control
ignores SIGINT and SIGQUIT in what it runs in the background. A test that sends them to a process
would then wait for ever.
"""

from __future__ import annotations

import signal

__all__ = ["restore_signals"]

_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python itself ignores."""


def restore_signals() -> None:
    """Ignore no signal that Python does not ignore by itself. For the main thread alone."""
    for number in signal.valid_signals():
        if number not in _PYTHONS and signal.getsignal(number) == signal.SIG_IGN:
            interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if interrupt else signal.SIG_DFL)

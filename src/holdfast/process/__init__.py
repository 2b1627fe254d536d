"""Worker processes of one node: how they are started, contained, watched, logged and stopped.

Layout, in reading order (◦ = pure)
    spec.py ◦         what to run, one worker of one attempt, and how a process ended
    stop/             how workers are stopped, and how nothing of them survives
    start/            how workers are started, by any method, and what runs first in them
    output/           where the workers' output goes
    outcome/          what went wrong in a worker
    group.py          the workers of one attempt: start them, hear of their ends, stop them
    numa.py           which processors a worker should run on
    signals.py        signals as events
    fifo.py           a FIFO that only this user can use
    progress.py       the step that a worker is at: told by it, read by its agent
    watchdog.py       timers that end a worker which does not renew them
"""

from __future__ import annotations

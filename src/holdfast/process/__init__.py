"""Worker processes of one node: how they are started, contained, watched, logged and stopped.

Layout, in reading order (◦ = pure)
    spec.py ◦         what to run, one worker of one attempt, and how a process ended
    failure.py ◦      what went wrong in a worker: the error file's format, and the first cause
    errorfile.py      error files on disk, which nobody trusts; `record`
    memory.py         whether the kernel killed for want of memory
    escalation.py ◦   TERM, grace, KILL, abandon
    orders.py         orders to worker processes, as the agent writes and sends them
    worker.py         what runs first in a worker's process (a script, run by path)
    child.py          what that does: makes the process ours, then becomes the program
    forked.py         what runs first in a worker that was forked
    fence_main.py     the process that kills workers at a deadline (a script, run by path)
    fence.py          a deadline for all workers, which holds though the agent does not run
    leftovers.py      what dead agents left: found by their locks, and removed
    cgroup.py         a control group for the workers of one agent
    containment.py    nothing survives: process groups, control groups, the reaper
    stacks.py         which workers can be asked for their stacks
    orphans.py        reaps what process 1 inherits
    handle.py         a process that we started: hear of its end, and learn how it ended
    spawn.py          start one worker, by any method
    returns.py        what a worker's function returned
    zygote.py         the process that forks workers, for the start method forkserver
    warm.py           pre-imported standby workers
    prefix.py ◦       the text before each line of a worker's output
    streams.py ◦      which stream of which worker goes where
    pump.py           carries the workers' output to files and to the console
    logs.py           the folders of a run, and the streams of an attempt
    numa.py           which processors a worker should run on
    group.py          the workers of one attempt: start them, hear of their ends, stop them
    fifo.py           a FIFO that only this user can use
    watchdog.py       timers that end a worker which does not renew them
    signals.py        signals as events
"""

from __future__ import annotations

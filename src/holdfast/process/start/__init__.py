"""How worker processes are started, and what runs first in them.

Layout, in reading order
    orders.py         orders to worker processes, as the agent writes and sends them
    worker.py         what runs first in a worker's process (a script, run by path)
    child.py          what that does: makes the process ours, then becomes the program
    standby_main.py   what a standby does until it is a worker
    forkable.py       whether forks are as good as interpreters that each import
    standby_parent_main.py  what the parent of standbys does: it imports once, and forks them
    forked.py         what runs first in a worker that was forked
    zygote.py         the process that forks workers, for the start method forkserver
    standby_parent.py  the agent's side of the parent of standbys
    warm.py           pre-imported standby workers
    forker_main.py    what the forker does: start a program for each order
    forker.py         the agent's side of the forker, one small process that starts all programs
    payload.py        a function with its arguments, written for a process that calls it
    checks.py         what can be known to be wrong before anything runs
    spawn.py          start workers, by any method
    returns.py        what a worker's function returned
"""

from __future__ import annotations

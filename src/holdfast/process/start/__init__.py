"""How worker processes are started, and what runs first in them.

Layout, in reading order
    orders.py         orders to worker processes, as the agent writes and sends them
    worker.py         what runs first in a worker's process (a script, run by path)
    child.py          what that does: makes the process ours, then becomes the program
    forked.py         what runs first in a worker that was forked
    zygote.py         the process that forks workers, for the start method forkserver
    warm.py           pre-imported standby workers
    spawn.py          start one worker, by any method
    returns.py        what a worker's function returned
"""

from __future__ import annotations

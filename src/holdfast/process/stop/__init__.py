"""How worker processes are stopped, and how nothing of them survives.

Layout, in reading order (◦ = pure)
    escalation.py ◦   TERM, grace, KILL, abandon
    search.py         looks for processes: of the host, of a control group, below a process
    orphans.py        adopts and reaps what workers leave behind
    handle.py         a process that we started: hear of its end, and learn how it ended
    fence_main.py     the process that kills workers at a deadline (a script, run by path)
    fence.py          a deadline for all workers, which holds though the agent does not run
    leftovers.py      what dead agents left: found by their locks, and removed
    cgroup.py         a control group for the workers of one agent
    containment.py    nothing survives: process groups, control groups, the reaper
"""

from __future__ import annotations

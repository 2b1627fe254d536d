"""The control channel: each agent of this machine answers its user's commands.

Layout, in reading order (◦ = pure)
    messages.py ◦  what is asked and answered, as bytes
    jobs.py ◦      from agents to jobs: which belong together, and which one is meant
    ranks.py ◦     ranks as people write them
    merged_stacks.py ◦  stacks of many workers: ranks at the same place are one class
    summary.py ◦   a job in a few fields, from what its agents say
    log_files.py ◦  which files hold what the workers wrote
    stragglers.py ◦  which workers are slower than the others
    frames.py      one frame on a socket, within a deadline
    folder.py      the user's private folder, with an entry for each agent of this machine
    server.py      an agent's end: a socket beside its entry, a thread for each request
    client.py      a command's end: asks many agents at once, and clears entries of the dead
"""

from __future__ import annotations

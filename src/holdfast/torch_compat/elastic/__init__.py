"""torch's launcher and agent by holdfast: what runs below `torch.distributed.elastic` is ours.

Layout, in reading order
    rendezvous.py   torch's rendezvous handler, over our rounds
    timers.py       torch's file timer server, by our watchdog
    processes.py    torch's worker processes, contained and watched by us
    agent.py        torch's agent, for what only our rounds can do
    etcd.py         torch's etcd server, by ours
    health.py       torch's health check server, by ours
    names.py        which names of torch these are

torch's Python stays above them: `torch.distributed.run`, the launcher, the agent's loop, logs,
events, metrics, error files. Programs and tests replace parts of it by name, and find each
of them where it was, doing what it did.
"""

from __future__ import annotations

"""Raft: one log that several members agree on, while fewer than half of them are lost.

Raft as published (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm";
Ongaro's thesis for pre-vote, membership changes, reads and leadership transfer), in the form that
etcd/raft gave it. Its messages map one to one onto etcd's, so that simulated clusters can mix
members of both: tests/sim/raft. The docstring of `machine.py` lists the deviations.

It carries the commands of a `tcp://` store with several members (store/replica), so that the store
outlives the process that leads it: docs/decisions/022-raft-in-house.md, 025-replicated-store.md.

Layout, in reading order (◦ = pure)
    messages.py ◦       entries, configurations, and what members say to each other
    effects.py ◦        what a member wants done
    log.py ◦            the log of one member
    state.py ◦          what a member knows in every role
    progress.py ◦       what a leader knows of each other member
    reads.py ◦          reads that wait until the leader is sure that it still leads
    leader.py ◦         what a leader does in its term
    machine.py ◦        one member as a machine
"""

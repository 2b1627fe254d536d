"""Rendezvous: which nodes are in this round of a run, and in which order.

Layout, in reading order (◦ = pure)
    model.py ◦       what nodes tell each other through the store, as versioned JSON
    ranks.py ◦       which nodes get a place, and which rank
    decide.py ◦      what becomes of a round: every decision with its reason
    roll.py ◦        the members of a round, by pages, as the leader writes them
    leadership.py ◦  what the leader knows
    effects.py ◦     what a node wants done, and what it tells
    trouble.py ◦     a store that does not answer
    own_lease.py ◦   a node's lease: when to renew it, and until when it is surely held
    presence.py ◦    a node's announcement, which no late write undoes
    account.py ◦     the failure that a node reports, until it is counted
    own_rank.py ◦    a node's rank in the newest round
    control.py ◦     the newest values of the keys that control the run
    machine.py ◦     one node: announces itself, leads or follows
    inputs.py ◦      what may happen to it, as data
    story.py ◦       that and what it does, in words
    session.py       a node at work: the machine's thread over a store
    parameters.py ◦  what a user says
    hosting.py ◦     whether this agent hosts a member of the run's store
    store_host.py    the member that it hosts
    roll_reader.py   the members of a round, read when they are asked for
    handler.py       what a user gets: `Rendezvous`, `Round`
    port.py          a port held for the round's master
    release.py       what a node releases when it has left
    backends.py      c10d, static, etcd, etcd-v2, file
    registry.py      backends by name, open to third parties
"""

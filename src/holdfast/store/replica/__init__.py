"""A store that several members keep, so that it outlives each of them: docs/stores.md.

Layout, in reading order (◦ = pure)
    commands.py ◦       what the log holds
    places.py ◦         where members are, and whose process they are in
    state.py ◦          what a member that joins is given
    policy.py ◦         which change of the members a leader asks for next
    messages.py ◦       what members say to each other
    link.py ◦           the connection from one member to another
    voices.py ◦         which members have died, by proof
    care.py ◦           which members are silent, which have caught up
    reads.py ◦          reads, until they may be performed
    store_time.py ◦     the time by which leases end
    kept.py ◦           how much of the log is kept
    effects.py ◦        what a member wants done
    membership.py ◦     which processes join, leave, and have died
    machine.py ◦        one member as a machine: the service, its log, and its clients
    links.py            the connections to the other members
    joining.py          how a process becomes a member, and none again
"""

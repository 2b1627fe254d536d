"""Stores: a small shared key-value space that every other part stands on.

Layout, in reading order (◦ = pure)

What a store is
    ops.py ◦            the operations, as data
    keyspace.py ◦       what each of them means: the reference for every backend
    store.py            what every backend gives its users
    pending.py ◦        the changes that a watch has not delivered yet
    memory.py           inside one process: the shortest backend
    view.py             what views of a store have in common
    prefix.py           a view in which every key lies under a prefix
    fenced.py           a view whose writes end when a key changes
    open.py             from an endpoint to a store
On any store
    gather.py           barrier and all-gather; they name the missing ranks
    lease.py            a lease that a thread keeps alive
tcp:// between hosts
    wire.py ◦           operations and results as bytes
    messages.py ◦       what client and server say to each other
    clients.py ◦        what the server keeps of each client
    effects.py ◦        what the server wants done
    delivery.py ◦       what clients are told of changes: waits, watches
    service.py ◦        the server as a machine
    session.py ◦        the client as a machine
    client.py           its shell, without a thread of its own
    candidates.py ◦     which of several members a client tries next
    raft/               one log that several members agree on
    replica/            a store that several members keep, by that log
    member_server.py    how a server becomes a member and leaves: the ground of server.py
    server.py           the shell of service.py and replica/: one thread, thousands of clients
file:// on one host
    filelog.py ◦        the format of the log
    lockholder.py       which process holds the lock of a file
    file.py             the store: locks, appends, and survives killed writers
In packages of their own
    etcd/               etcd:// and etcd-v2://, and a real etcd to start
    c10d/               the protocol of torch's TCPStore, both sides
"""

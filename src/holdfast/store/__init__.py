"""Stores: a small shared key-value space that every other part stands on.

Layout, in reading order (◦ = pure)

What a store is
    ops.py ◦            the operations, as data
    keyspace.py ◦       what each of them means: the reference for every backend
    store.py            what every backend gives its users
    memory.py           inside one process: the shortest backend
    view.py             what views of a store have in common
    prefix.py           a view in which every key lies under a prefix
    fenced.py           a view whose writes end when a key changes
    pending.py ◦        the changes that a watch has not delivered yet
    open.py             from an endpoint to a store
On any store
    gather.py           barrier and all-gather; they say who is missing
    lease.py            a lease that a thread keeps alive
tcp:// between hosts
    wire.py ◦           operations and results as bytes
    messages.py ◦       what client and server say to each other
    service.py ◦        the server as a machine
    server.py           its shell: one thread, thousands of clients
    session.py ◦        the client as a machine
    client.py           its shell, without a thread of its own
file:// on one host
    filelog.py ◦        the format of the log
    file.py             the store: locks, appends, and survives killed writers
etcd:// and etcd-v2://
    etcd_reply.py ◦     HTTP replies, parsed as they come
    etcd_http.py        HTTP with a deadline on every call
    etcd_client.py      the way to a cluster: several addresses, retries
    etcd_gateway.py     the messages of the v3 API
    etcd_writer.py      writes that happen exactly once
    etcd_lease.py       leases
    etcd_stream.py      the events of the v3 API
    etcd_watch.py       watches: events are followed, and never trusted alone
    etcd.py             the store on the v3 API
    etcd_v2_api.py      the v2 keys API
    etcd_v2_ops.py      what operations become in it
    etcd_v2.py          the store on the v2 API
    etcd_server.py      a real etcd, started and stopped from here
    etcd_guard.py       a script: ends that etcd when its owner dies
The protocol of torch's TCPStore
    c10d_messages.py ◦  requests, as data
    c10d_wire.py ◦      requests and replies as bytes
    c10d_space.py ◦     what requests mean
    c10d_server.py      the door for torch's clients
    c10d_line.py        connections to a store that torch hosts
    c10d_client.py      such a store, used as one of ours
"""
